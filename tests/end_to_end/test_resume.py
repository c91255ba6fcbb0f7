"""A run that is stopped in any way and started again ends bit-identical to an undisturbed run."""

import copy
import itertools
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import disturb
import pytest
import torch
from helpers import language_models, reading_and_retrieval, stopping, translation_tasks
from helpers.cases import some
from helpers.stopping import SHORT_RUN, WARMUP, assert_same, crash, execute_on_few_images, stop, terminate
from helpers.translation_tasks import SHORT, tiny

from rmsexp import config
from rmsexp.compare import load
from rmsexp.records import record
from rmsexp.records.frames import time_states
from rmsexp.system import atomic
from rmsexp.train import checkpoint
from rmsexp.train.loop import Trainer
from rmsexp.work import runner

NORMS = ["rms", "bn", "wn", "none"]  # wn and none are initialised from data
Reference = Callable[[str], Path]


def words(data_root: Path, results: Path, *more: str) -> list[str]:
    return [*SHORT_RUN, f"data.root={data_root}", f"results={results}", *more]


def execute(data_root: Path, results: Path, *more: str) -> runner.Outcome:
    return execute_on_few_images(words(data_root, results, *more))


@pytest.fixture(scope="module")
def reference(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Return a function that gives the results folder of a norm's undisturbed run, which is done at its first call."""
    root = tmp_path_factory.mktemp("reference")

    def results_of(norm: str) -> Path:
        if not (root / norm).exists():
            assert execute(data_root, root / norm, f"norm={norm}").status == "finished"
        return root / norm

    return results_of


def test_the_time_of_a_run_is_that_of_processes_that_took_steps(data_root: Path, tmp_path: Path) -> None:
    """A process that continues from the last step evaluates at most, and may run on another machine."""
    execute(data_root, tmp_path)
    (folder,) = record.find_runs(tmp_path)
    files = record.RunFolder(folder)
    status = files.read_status()
    kept = {key: status[key] for key in ("run", "checkpoint")}
    files.write_status("interrupted", status["step"], **kept)
    assert execute(data_root, tmp_path).status == "finished"
    first, last = files.read_run()["sessions"]
    assert (record.TRAINED in first, last[record.TRAINED]) == (False, False)
    changed = [first | {"threads": 5}, last | {"threads": 6, "comparable": False}]
    atomic.write_json(files.run_path, files.read_run() | {"sessions": changed})
    run = load(tmp_path).runs.iloc[0]
    assert (run["threads"], run["time_state"]) == (5, time_states.run_state([first]))


@pytest.mark.parametrize(("step", "norm"), some(itertools.product((1, 7), NORMS), [(1, "wn"), (1, "bn"), (7, "bn")]))
def test_a_run_continues_after_a_crash(
    norm: str, step: int, data_root: Path, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop(monkeypatch, "_update", WARMUP + step + 1, crash)
    outcome = execute(data_root, tmp_path, f"norm={norm}")
    assert (outcome.status, outcome.step) == ("failed", step)
    assert execute(data_root, tmp_path, f"norm={norm}").status == "finished"
    assert_same(reference(norm), tmp_path)


# the call of a method that the signal interrupts; isfinite is one in _collect, as the first evaluation makes only three
AT = [("_update", nth) for nth in (2, WARMUP + 1, WARMUP + 6)]
AT += [("_collect", 1), ("isfinite", 5), ("_log", 3), ("_evaluate", 3), ("_checkpoint", 3)]
ALSO_AT = [("_update", nth) for nth in range(WARMUP + 2, WARMUP + 8 + 1) if nth != WARMUP + 6]
ALSO_AT += [("_collect", 2), ("_log", 1), ("_evaluate", 1), ("_checkpoint", 1)]


@pytest.mark.parametrize(("method", "nth"), some(AT + ALSO_AT, AT))
def test_a_run_continues_after_sigterm_in_any_method(
    method: str, nth: int, data_root: Path, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop(monkeypatch, method, nth, terminate, math if method == "isfinite" else Trainer)
    outcome = execute(data_root, tmp_path, "norm=bn")
    assert (outcome.status, outcome.signum) == ("interrupted", signal.SIGTERM)
    assert execute(data_root, tmp_path, "norm=bn").status in ("finished", "interrupted")
    assert execute(data_root, tmp_path, "norm=bn").already
    assert_same(reference("bn"), tmp_path)


@pytest.mark.parametrize("norm", some(NORMS, ["bn", "wn"]))
def test_continuing_a_finished_run_and_warming_up(
    norm: str,
    data_root: Path,
    tmp_path: Path,
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run to step 4 that is continued to step 8 equals an uninterrupted run. Both warm-ups restore the state."""
    warm_up, warmed_up = Trainer._warm_up, []

    def full_state(trainer: Trainer) -> list[Any]:
        gradients = {name: parameter.grad for name, parameter in trainer.model.named_parameters()}
        training = [module.training for module in trainer.model.modules()]
        states = [trainer.model.state_dict(), trainer.optimizer.state_dict(), gradients, torch.get_rng_state()]
        return [*states, training, trainer.state.step, trainer.state.examples, trainer.state.pending]

    def check_warm_up(self: Trainer) -> None:
        before = copy.deepcopy(full_state(self))
        warm_up(self)
        assert disturb.differences(before, full_state(self)) == []
        assert self._recent == []
        warmed_up.append(self.state.step)

    monkeypatch.setattr(Trainer, "_warm_up", check_warm_up)
    assert execute(data_root, tmp_path, f"norm={norm}", "max_steps=4").step == 4
    assert execute(data_root, tmp_path, f"norm={norm}", "max_steps=4").already
    assert execute(data_root, tmp_path, f"norm={norm}").step == 8
    assert warmed_up == [0, 4]
    assert "older" not in capsys.readouterr().err
    assert_same(reference(norm), tmp_path)


# with dropout, if the model has it, and few steps in an epoch; the Transformer has two micro-batches per step
TASKS = {
    "rnnsearch": [*tiny("rnnsearch"), *SHORT, "batch_size=30", "model.dropout=0.2"],
    "transformer": [*tiny("transformer"), "tokens=1000", "model.dropout=0.1", "model.attention_dropout=0.1"],
    "attentive_reader": [*reading_and_retrieval.tiny("attentive_reader"), "batch_size=30"],
    "order_embedding": [*reading_and_retrieval.tiny("order_embedding"), "batch_size=20"],
    "language_model": [*language_models.TINY, "context=64", "batch_size=20"],
}


KEPT = [("transformer", "norm=wn"), ("attentive_reader", "norm=none"), ("order_embedding", "norm=bn")]
KEPT += [("language_model", "norm=bn")]
OTHERS = [("language_model", "norm=rms"), ("attentive_reader", "norm=bn"), ("rnnsearch", "norm=bn")]
OTHERS += [("transformer", "norm=bn batching=toolkit decoding.search=toolkit")]


@pytest.mark.usefixtures("small_synthetic_data")
@pytest.mark.parametrize(("task", "words"), some(KEPT + OTHERS, KEPT))
def test_runs_of_other_tasks_continue_after_a_crash_and_sigterm(
    task: str, words: str, text_root: Path, tmp_path: Path
) -> None:
    """They stop in different epochs: after one step, and then four steps later, of six."""
    root = text_root if task in translation_tasks.TASKS else tmp_path
    line = [*TASKS[task], *words.split(), f"data.root={root}", *stopping.EDGES, "max_steps=6"]
    whole, stopped = (config.job([*line, f"results={tmp_path / name}"]) for name in ("whole", "stopped"))
    assert runner.execute(whole).status == "finished"
    outcomes = []
    for nth, how in ((2, crash), (5, terminate)):
        with pytest.MonkeyPatch.context() as patch:
            stop(patch, "_update", WARMUP + nth, how)
            outcomes.append(runner.execute(stopped))
    assert [outcome.status for outcome in outcomes] == ["failed", "interrupted"]
    assert outcomes[0].step == 1
    assert runner.execute(stopped).status == "finished"
    assert_same(tmp_path / "whole", tmp_path / "stopped")


def test_an_interrupted_run_records_divergence_like_an_undisturbed_run(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Trainer._update

    def nan_at_step_5(self: Trainer, step: int, batches: Any) -> Any:
        result = update(self, step, batches)
        return result._replace(values=result.values * float("nan")) if step == 5 else result

    monkeypatch.setattr(Trainer, "_update", nan_at_step_5)
    results = [tmp_path / "a", tmp_path / "b"]
    outcomes = [execute(data_root, results[0], "norm=rms", "log_every=8", "checkpoint_every=8")]
    with monkeypatch.context() as patch:
        stop(patch, "_update", WARMUP + 5, terminate)
        assert execute(data_root, results[1], "norm=rms", "log_every=8", "checkpoint_every=8").step == 5
    outcomes.append(execute(data_root, results[1], "norm=rms", "log_every=8", "checkpoint_every=8"))
    assert [(outcome.status, outcome.step) for outcome in outcomes] == [("diverged", 5)] * 2
    rows = [disturb.run_content(root)["metrics"] for root in results]
    assert rows[0] == rows[1]
    assert (rows[0][-1]["step"], rows[0][-1]["examples"]) == (5, 40)


def test_a_run_continues_with_another_interval_of_logging(
    data_root: Path, tmp_path: Path, reference: Reference
) -> None:
    """Figure 1's runs are logged more often than others; the interval is no part of what a run is."""
    assert execute(data_root, tmp_path, "norm=rms", "log_every=2", "max_steps=4").step == 4
    assert execute(data_root, tmp_path, "norm=rms", "log_every=8").status == "finished"
    undisturbed, continued = (disturb.run_content(root) for root in (reference("rms"), tmp_path))
    for content, logged in ((undisturbed, [2, 4, 6, 8]), (continued, [2, 4, 8])):
        rows = content["metrics"]
        assert [row["step"] for row in rows if row["split"] == "train"] == logged
        content["metrics"] = [row for row in rows if row["split"] == "test"]
        content["last.pt"] = {key: content["last.pt"][key] for key in ("model", "optimizer")}
        del content["previous.pt"]
    assert disturb.differences(undisturbed, continued) == []


def test_damage_is_named_also_without_progress(
    data_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(data_root, tmp_path, "max_steps=4").step == 4
    (last,) = tmp_path.rglob(checkpoint.LAST)
    last.write_bytes(b"")
    (run,) = tmp_path.rglob(record.RUN)
    run.write_text(run.read_text().replace('"code": "', '"code": "0'))
    capsys.readouterr()
    job = config.job(words(data_root, tmp_path, "max_steps=5"))
    assert runner.execute(job, runner.Conditions(quiet=True)).step == 5
    lines = [line.partition(" (")[0] for line in capsys.readouterr().err.splitlines()]
    changed = "changed since the run's last process: code; so its time counts as disturbed"
    assert lines == [f"warning: rms seed0: {last} is damaged", f"warning: rms seed0: {changed}"]


def test_a_run_continues_after_sigkill(data_root: Path, tmp_path: Path, reference: Reference) -> None:
    """A process is killed while it writes a checkpoint; the next one finishes the run.

    ``python scripts/disturb.py chaos`` kills many more. The run is done by a copy of a process of its own, because a
    copy of this one would have its threads' locks.
    """
    program = "import disturb, pathlib, pytest, sys; from helpers import stopping; "
    program += "stopping.evaluate_few_images(pytest.MonkeyPatch()); "
    program += "kill = disturb.killing(disturb.Kill('checkpoint', 3)); "
    program += "print(disturb.start(['rmsexp', *sys.argv[2:]], pathlib.Path(sys.argv[1]), kill).end())"
    command = [sys.executable, "-c", program, tmp_path / "log.txt", *words(data_root, tmp_path / "killed", "norm=bn")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) == -signal.SIGKILL, (tmp_path / "log.txt").read_text()
    assert list(tmp_path.rglob(".*.pt.*.tmp"))
    (folder,) = record.find_runs(tmp_path / "killed")
    assert record.RunFolder(folder).read_status()["status"] == "interrupted"
    assert execute(data_root, tmp_path / "killed", "norm=bn").status == "finished"
    assert record.RunFolder(folder).read_run()["sessions"][-1]["from_step"] == 3
    assert not list(tmp_path.rglob(".*.tmp"))  # the run that continued removed those of the killed one
    contents = [disturb.run_content(results) for results in (reference("bn"), tmp_path / "killed")]
    assert disturb.differences(*contents) == []
