"""A run that is stopped in any way and started again ends bit-identical to one that was never stopped."""

from __future__ import annotations

import copy
import math
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.stopping import EDGES, WARMUP, assert_same, assert_stopping_changes_nothing, chaos, crash, stop, terminate
from helpers.translation_tasks import SHORT, tiny

from rmsexp import config, record, runner
from rmsexp.data.whitening import Whitened
from rmsexp.tasks import cifar10
from rmsexp.train import checkpoint
from rmsexp.train.loop import Trainer

WORDS = ("model.width=0.05", "batch_size=8", "schedule.steps=8", "schedule.period=1", *EDGES)
NORMS = ["rms", "bn", "wn", "none"]  # wn and none are initialised from data
Reference = Callable[[str], Path]


def words(data_root: Path, results: Path, *more: str) -> list[str]:
    return [*WORDS, f"data.root={data_root}", f"results={results}", *more]


def execute(data_root: Path, results: Path, *more: str) -> runner.Outcome:
    """One run; it is evaluated on 20 images: what is tested is when, not how well."""
    prepare = cifar10.Task.prepare

    def few(self: cifar10.Task, report: Callable[[str], None]) -> None:
        prepare(self, report)
        images = self._images
        self._images = Whitened(images.train_x, images.train_y, images.test_x[:20], images.test_y[:20])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cifar10.Task, "prepare", few)
        return runner.execute(config.job(words(data_root, results, *more)))


@pytest.fixture(scope="module")
def reference(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The results of a norm's run that nothing stopped, made when first asked for."""
    root = tmp_path_factory.mktemp("reference")

    def make(norm: str) -> Path:
        if not (root / norm).exists():
            assert execute(data_root, root / norm, f"norm={norm}").status == "finished"
        return root / norm

    return make


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("step", [1, 7])
def test_crash(
    norm: str, step: int, data_root: Path, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop(monkeypatch, "_update", WARMUP + step + 1, crash)
    outcome = execute(data_root, tmp_path, f"norm={norm}")
    assert (outcome.status, outcome.step) == ("failed", step)
    assert execute(data_root, tmp_path, f"norm={norm}").status == "finished"
    assert_same(reference(norm), tmp_path)


@pytest.mark.parametrize(
    ("method", "nth"),
    [
        *(("_update", nth) for nth in (2, *range(WARMUP + 1, WARMUP + 8 + 1))),
        *(("_collect", nth) for nth in (1, 2)),
        ("isfinite", 5),  # in the midst of _collect; three calls are of the first evaluation
        *((method, nth) for method in ("_log", "_evaluate", "_checkpoint") for nth in (1, 3)),
    ],
)
def test_sigterm_anywhere(
    method: str, nth: int, data_root: Path, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop(monkeypatch, method, nth, terminate, math if method == "isfinite" else Trainer)
    outcome = execute(data_root, tmp_path, "norm=bn")
    assert (outcome.status, outcome.signum) == ("interrupted", signal.SIGTERM)
    assert execute(data_root, tmp_path, "norm=bn").status in ("finished", "interrupted")
    assert execute(data_root, tmp_path, "norm=bn").already
    assert_same(reference("bn"), tmp_path)


def test_sigterm_twice_does_not_save_half_a_step(
    data_root: Path, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero_grad, calls = torch.optim.Optimizer.zero_grad, 0

    def after_the_update(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        nonlocal calls
        calls += 1
        if calls == WARMUP + 1 + 5:  # of them one at the end of the warm-up
            terminate()
            terminate()
        zero_grad(self, set_to_none)

    monkeypatch.setattr(torch.optim.Optimizer, "zero_grad", after_the_update)
    assert execute(data_root, tmp_path, "norm=bn").status == "interrupted"
    assert execute(data_root, tmp_path, "norm=bn").status == "finished"
    assert_same(reference("bn"), tmp_path)


@pytest.mark.parametrize("norm", NORMS)
def test_continuing_a_finished_run_and_warming_up(
    norm: str, data_root: Path, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 4 steps, then up to 8; both warm-ups leave everything as it was."""
    warm_up, warmed_up = Trainer._warm_up, []

    def everything(trainer: Trainer) -> list[Any]:
        gradients = {name: parameter.grad for name, parameter in trainer.model.named_parameters()}
        training = [module.training for module in trainer.model.modules()]
        states = [trainer.model.state_dict(), trainer.optimizer.state_dict(), gradients, torch.get_rng_state()]
        return [*states, training, trainer.state.step, trainer.state.examples, trainer.state.pending]

    def checked(self: Trainer) -> None:
        before = copy.deepcopy(everything(self))
        warm_up(self)
        assert chaos.differences(before, everything(self)) == []
        assert self._recent == []
        warmed_up.append(self.state.step)

    monkeypatch.setattr(Trainer, "_warm_up", checked)
    assert execute(data_root, tmp_path, f"norm={norm}", "max_steps=4").step == 4
    assert execute(data_root, tmp_path, f"norm={norm}", "max_steps=4").already
    assert execute(data_root, tmp_path, f"norm={norm}").step == 8
    assert warmed_up == [0, 4]
    assert_same(reference(norm), tmp_path)


@pytest.mark.parametrize(("task", "norm"), [("rnnsearch", "bn"), ("transformer", "wn"), ("transformer", "bn")])
def test_translation(task: str, norm: str, text_root: Path, tmp_path: Path) -> None:
    """With dropout of two kinds, two micro-batches a step of the Transformer, and an epoch that ends on the way."""
    own = {
        "rnnsearch": [*SHORT, "batch_size=30", "model.dropout=0.2"],
        "transformer": ["tokens=1000", "model.dropout=0.1", "model.attention_dropout=0.1"],
    }[task]
    options = [*tiny(task), *own, f"norm={norm}", f"data.root={text_root}"]
    assert_stopping_changes_nothing(options, tmp_path)


def test_divergence_is_recorded_alike(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Trainer._update

    def diverging(self: Trainer, step: int, batches: Any) -> Any:
        values, count = update(self, step, batches)
        return (values * float("nan") if step == 5 else values), count

    monkeypatch.setattr(Trainer, "_update", diverging)
    results = [tmp_path / "a", tmp_path / "b"]
    outcomes = [execute(data_root, results[0], "norm=rms", "log_every=8", "checkpoint_every=8")]
    with monkeypatch.context() as patch:
        stop(patch, "_update", WARMUP + 5, terminate)
        assert execute(data_root, results[1], "norm=rms", "log_every=8", "checkpoint_every=8").step == 5
    outcomes.append(execute(data_root, results[1], "norm=rms", "log_every=8", "checkpoint_every=8"))
    assert [(outcome.status, outcome.step) for outcome in outcomes] == [("diverged", 5)] * 2
    rows = [chaos.run_content(root)["metrics"] for root in results]
    assert rows[0] == rows[1]
    assert (rows[0][-1]["step"], rows[0][-1]["examples"]) == (5, 40)


def test_damaged_checkpoint_costs_only_its_steps(
    data_root: Path, tmp_path: Path, reference: Reference, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(data_root, tmp_path, "norm=bn", "max_steps=4").step == 4
    (last,) = tmp_path.rglob(checkpoint.LAST)
    last.write_bytes(last.read_bytes()[:-1000])
    assert execute(data_root, tmp_path, "norm=bn").step == 8
    said = capsys.readouterr().err
    assert f"warning: {last} is damaged" in said
    assert "continuing at step 3" in said
    last.with_name(checkpoint.DAMAGED).unlink()
    assert_same(reference("bn"), tmp_path)


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [lambda content: content[:-1], flip, lambda _: b"", lambda _: b"text"])
def test_whole_checkpoint_survives_a_damaged_one(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """Even where the process is killed when ``last.pt`` has been renamed and the next is not there yet."""
    values = [{"model": {"weight": torch.full((1000,), float(number))}} for number in range(3)]
    for value in values[:2]:
        checkpoint.save(tmp_path, value)
    last = tmp_path / checkpoint.LAST
    last.write_bytes(damage(last.read_bytes()))
    payload, warning = checkpoint.load(tmp_path)
    assert chaos.differences(payload, values[0]) == []
    assert warning is not None
    assert warning.startswith(f"{last} is damaged")
    assert warning.endswith(f"continuing from {checkpoint.PREVIOUS}")
    checkpoint.save(tmp_path, values[2])
    last.unlink()
    payload, warning = checkpoint.load(tmp_path)
    assert chaos.differences(payload, values[0]) == []
    assert warning is None


def test_only_damaged_checkpoints(tmp_path: Path) -> None:
    for name in (checkpoint.LAST, checkpoint.PREVIOUS):
        (tmp_path / name).write_bytes(b"text")
    with pytest.raises(checkpoint.CheckpointError, match=r"force=true"):
        checkpoint.load(tmp_path)


def test_differences_sees_every_bit() -> None:
    x = torch.tensor([0.0, 1.0])
    value = {"a": [x, 1], "b": None}
    assert chaos.differences(value, {"a": [x.clone(), 1], "b": None}) == []
    for other in (
        {"a": [torch.tensor([-0.0, 1.0]), 1], "b": None},
        {"a": [x.double(), 1], "b": None},
        {"a": [x, 1.0], "b": None},
        {"a": [x], "b": None},
        {"a": [x, 1], "c": None},
    ):
        assert len(chaos.differences(value, other)) == 1


def test_sigkill(data_root: Path, tmp_path: Path) -> None:
    """Two children are killed; the whole is ``python scripts/chaos.py``."""
    log = tmp_path / "log.txt"
    deaths = [
        chaos.run(words(data_root, tmp_path / "killed", "norm=bn"), log, chaos.Kill(point, count))
        for point, count in (("checkpoint", 3), ("evaluation", 2))
    ]
    assert [death.status for death in deaths] == [-signal.SIGKILL] * 2, log.read_text()
    assert [death.first_step for death in deaths] == [0, 3]
    assert deaths[0].killed_at is not None
    assert deaths[0].killed_at.endswith(".pt half written")
    assert not list(tmp_path.rglob(".*.tmp"))  # the second child removed what the first had left
    (folder,) = record.find_runs(tmp_path / "killed")
    assert record.RunFolder(folder).read_status()["status"] == "interrupted"
    for name in ("killed", "reference"):
        assert runner.execute(config.job(words(data_root, tmp_path / name, "norm=bn"))).status == "finished"
    assert chaos.compare(tmp_path / "reference", tmp_path / "killed") == []


def test_plan_has_each_point_three_times() -> None:
    for seed in range(5):
        points = [kill.point for kill in chaos.plan(20, random.Random(seed))]
        writes = ["checkpoint" if point == "rename" else point for point in points]
        assert len(points) == 20
        assert all(writes.count(point) >= 3 for point in ("checkpoint", "metrics", "evaluation", "warmup", "random"))
