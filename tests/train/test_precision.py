"""Runs in float16: the loss is scaled, gradients are divided by the scale before clipping, overflows skip steps."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cases import some
from helpers.stopping import EDGES, assert_stopping_changes_nothing
from helpers.tasks import task_and_model
from torch import Tensor
from torch.amp import GradScaler

from rmsexp import config
from rmsexp.records import record
from rmsexp.train import loop
from rmsexp.train.distributed.joint import stepper_of
from rmsexp.train.step import Stepper, StepResult
from rmsexp.work import runner

CPU = torch.device("cpu")
TINY = {
    "order_embedding": ["task=order_embedding", "model.embedding=8", "model.hidden=8", "batch_size=8"],
    "language_model": [
        *("task=language_model", "model.width=16", "model.layers=1", "model.inner=32", "model.heads=2"),
        *("model.kv_heads=1", "context=16", "batch_size=8"),
    ],
}


@pytest.fixture
def words(text_cache: Path, small_synthetic_data: None) -> dict[str, list[str]]:  # noqa: ARG001
    return {task: [*tiny, f"data.root={text_cache}", "threads=1"] for task, tiny in TINY.items()}


def begin(patch: pytest.MonkeyPatch, scale: float, **options: float) -> None:
    """Make runs begin with this scale of the loss. ``options``: other ones of the scaler."""
    patch.setattr(torch.amp, "GradScaler", partial(GradScaler, init_scale=scale, **options))


def stepper(*words: str) -> Stepper:
    task, model = task_and_model(*words)
    return stepper_of(task.config, task, model, CPU, None)


def take(made: Stepper, step: int) -> StepResult:
    return made.take(step, made.task.batches(step))


def gradients(*words: str) -> tuple[list[Tensor], Tensor]:
    """Return the clipped gradients of the first step, and its values."""
    made, found = stepper(*words), list[Tensor]()

    def keep(optimizer: Any, *_: object) -> None:
        found.extend(p.grad.clone() for group in optimizer.param_groups for p in group["params"] if p.grad is not None)

    made.optimizer.register_step_pre_hook(keep)
    return found, take(made, 1).values


@pytest.mark.parametrize("clip", ["null", "0.001"])
@pytest.mark.parametrize("task", TINY)
def test_gradients_and_their_norm_are_those_of_float32(
    task: str, clip: str, words: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In three micro-batches. Clipping to 0.001 would leave nothing of gradients that are still scaled."""
    begin(monkeypatch, 2.0**6)
    line = [*words[task], "norm=rms", "micro_batches=3", f"optim.clip={clip}"]
    half, values = gradients(*line, "precision=float16")
    single, expected = gradients(*line)
    torch.testing.assert_close(values, expected, rtol=0.02, atol=0.01)
    assert not torch.equal(values, expected)
    norm = torch.nn.utils.get_total_norm(single)
    difference = torch.nn.utils.get_total_norm([a - b for a, b in zip(half, single, strict=True)])
    assert difference < 0.1 * norm


def test_small_gradients_do_not_become_zero(words: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(precision: str) -> int:
        return sum(int((g == 0).sum()) for g in gradients(*words["language_model"], f"precision={precision}")[0])

    scaled, single = zeros("float16"), zeros("float32")
    begin(monkeypatch, 2.0**-8)
    assert zeros("float16") > 2 * scaled
    assert scaled <= single + 20


@pytest.mark.parametrize("task", TINY)
def test_an_overflow_changes_nothing_but_the_scale(
    task: str, words: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(monkeypatch, 2.0**80, backoff_factor=2.0**-76)
    made = stepper(*words[task], "norm=rms", "precision=float16")
    before = [p.clone() for p in made.model.parameters()]
    result = take(made, 0)
    assert (result.skipped, result.scale) == (True, 2.0**4)
    assert result.values[:-1].isfinite().all()
    assert not result.values[-1].isfinite()
    assert all(torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True))
    assert all(float(state.get("step", 0)) == 0 for state in made.optimizer.state.values())
    assert all(group.get("t", 0) == 0 for group in made.optimizer.param_groups)
    assert not take(made, 0).skipped
    assert not any(torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True))


@pytest.mark.parametrize("task", some(["order_embedding", "language_model"], ["language_model"]))
def test_a_stopped_run_continues_with_its_scale(
    task: str, words: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skipped steps and doubled scales alternate, so a run that lost the scaler's state would end otherwise."""
    begin(monkeypatch, 2.0**40, growth_interval=1)
    line = [*words[task], "norm=bn", "norm.min_examples=1", "precision=float16", "micro_batches=3"]
    assert_stopping_changes_nothing([*line, *EDGES], tmp_path)
    (folder,) = record.find_runs(tmp_path / "whole")
    rows = [row for row in record.RunFolder(folder).read_metrics()[0] if row["split"] == "train"]
    skipped, scales = [row["skipped_steps"] for row in rows], [row["loss_scale"] for row in rows]
    assert skipped == sorted(skipped)
    assert skipped[-1] > 0
    assert len(set(scales)) == len(scales)
    assert record.RunFolder(folder).read_run()["precision"] == "float16"


def test_a_gradient_that_no_scale_makes_finite_ends_the_run(
    words: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step that would need a smaller scale is the one that diverged, wherever the log has its rows."""
    begin(monkeypatch, 2.0**80)
    monkeypatch.setattr(loop, "SMALLEST_SCALE", 2.0**76)
    job = config.job([*words["order_embedding"], "precision=float16", "max_steps=9", f"results={tmp_path}"])
    outcome = runner.execute(job)
    assert (outcome.status, outcome.step) == ("diverged", 4)
    assert outcome.error == "a gradient of step 4 is not finite"
    (row,) = [row for row in record.RunFolder(job.folder).read_metrics()[0] if row["split"] == "train"]
    assert (row["step"], row["skipped_steps"], row["loss_scale"], row["grad_norm"]) == (4, 4, 2.0**76, None)


def test_the_precision_is_part_of_a_runs_identity() -> None:
    jobs = [config.job([f"precision={precision}"]) for precision in ("float32", "bfloat16", "float16")]
    assert [job.setting for job in jobs] == ["demo", "demo+precision=bfloat16", "demo+precision=float16"]
    with pytest.raises(config.ConfigError, match="precision=half is not known"):
        config.job(["precision=half"])
