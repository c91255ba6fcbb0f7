"""Ctrl-C and SIGTERM, and sweeps."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from helpers import language_models
from helpers.command_bench import Bench, at_step, not_finite_at
from helpers.tasks import Main

from rmsexp import config
from rmsexp.commands import result
from rmsexp.records import record
from rmsexp.system import cores
from rmsexp.tasks.cifar10 import Task
from rmsexp.work import runner

# --- Ctrl-C and SIGTERM


def test_a_run_continues_after_a_signal_before_training(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Task, "prepare", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        assert bench().status == 130
    assert bench.status()["status"] == "interrupted"
    assert bench().status == 0


def test_a_signal_ends_the_whole_sweep_which_goes_on_with_the_runs_that_it_had_not_reached(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was forced, and then without doing again what it has done."""
    words = ("-m", "norm=rms,ln")
    with monkeypatch.context() as patch:
        at_step(patch, 3, lambda: os.kill(os.getpid(), signal.SIGINT))
        done = bench(*words)
    assert (done.status, bench.status()["status"]) == (130, "interrupted")
    assert "stopped: 1 interrupted, 1 not started; repeat the command to continue" in done.out
    assert not bench.folder("ln").exists()
    assert bench(*words, "force=false").status == 0
    assert bench.status()["status"] == bench.status("ln")["status"] == "finished"

    longer = (*words, "max_steps=8")
    with monkeypatch.context() as patch:
        at_step(patch, 3, lambda: os.kill(os.getpid(), signal.SIGINT))
        done = bench(*longer, "force=true")
    assert done.status == 130
    assert "stopped: 1 interrupted, 1 not started; repeat the command without force=true to continue" in done.out
    assert "repeat the command to continue" not in done.out
    assert not bench.folder("ln").exists()
    assert bench.folder("ln").with_name("seed0.old0").is_dir()
    done = bench(*longer)
    assert (done.status, "already" in done.out, "continuing at step 4" in done.err) == (0, False, True)
    assert bench.status("ln")["status"] == "finished"
    assert not bench.folder("ln").with_name("seed0.old1").exists()


def test_an_error_of_the_program_in_a_sweep_has_a_traceback_and_the_sweep_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = runner.execute

    def broken(job: config.Job, conditions: runner.Conditions) -> runner.Outcome:
        if job.norm.name == "rms":
            raise KeyError("broken")
        return execute(job, conditions)

    monkeypatch.setattr(runner, "execute", broken)
    done = bench("-m", "norm=rms,ln")
    assert done.status == 1
    assert "KeyError: 'broken'" in done.err
    assert "Traceback" in done.err
    assert bench.status("ln")["status"] == "finished"


def test_a_finished_run_stays_finished_until_a_longer_one_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed meanwhile leaves this status."""
    assert bench("max_steps=2").status == 0
    prepare, seen = Task.prepare, list[str]()

    def watched(*arguments: Any) -> None:
        seen.append(bench.status()["status"])
        prepare(*arguments)

    monkeypatch.setattr(Task, "prepare", watched)
    assert bench("max_steps=4").status == 0
    assert (seen, bench.status()["step"]) == (["finished"], 4)


def test_a_sweep_names_a_run_that_another_process_is_doing(bench: Bench) -> None:
    with record.RunFolder(bench.folder("ln")).lock.held():
        bench.folder("ln").mkdir(parents=True)
        record.RunFolder(bench.folder("ln")).write_status("running", 3, None)
        done = bench("-m", "norm=ln")
    assert done.status == 1
    assert f"running: {bench.folder('ln')}: another process is doing it\n" in done.out
    assert f"{bench.folder('ln')} is being written by another process" in done.err


def test_a_signal_before_a_divergence_is_noticed_ends_the_sweep(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    not_finite_at(monkeypatch, 1)
    at_step(monkeypatch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert bench("-m", "norm=rms,ln", "log_every=4", "eval_every=4", "checkpoint_every=4").status == 143
    assert bench.status()["status"] == "diverged"
    assert not bench.folder("ln").exists()


# --- sweeps


def test_a_sweep_continues_after_runs_that_fail_or_diverge(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    build = Task.build

    def build_and_note(self: Task, norm: Any) -> Any:
        order.append(norm.name)
        return build(self, norm)

    def fail_for_ln(self: Task, norm: Any) -> Any:
        if norm.name == "ln":
            raise RuntimeError("raised by the test")
        return build_and_note(self, norm)

    words = ("-m", "norm=rms,ln,l2")
    with monkeypatch.context() as patch:
        patch.setattr(Task, "build", fail_for_ln)
        not_finite_at(patch, 3, "l2")
        done = bench(*words)
    assert done.status == 1
    assert order == ["rms", "l2"]
    statuses = {norm: bench.status(norm)["status"] for norm in ("rms", "ln", "l2")}
    assert statuses == {"rms": "finished", "ln": "failed", "l2": "diverged"}
    listed = done.out[done.out.rindex("record  ") :]
    assert f"failed: {bench.folder('ln')}: RuntimeError: raised by the test" in listed
    assert f"diverged: {bench.folder('l2')}: the training objective of step 3 is not finite" in listed
    assert f"{bench.folder('rms')}:" not in listed
    assert "repeat the command to do the runs that are missing" in listed

    order.clear()
    monkeypatch.setattr(Task, "build", build_and_note)
    done = bench(*words)
    assert done.status == 0
    assert order == ["ln"]
    assert done.out.count("already finished") == done.out.count("already diverged") == 1
    assert bench.status("ln")["status"] == "finished"


@pytest.mark.minutes
def test_runs_in_parallel_share_the_cores(main: Main, tmp_path: Path) -> None:
    """Of two runs at a time, each uses half of the cores, although eight were asked for.

    They run in new processes, without this process's patches.
    """
    from joblib.externals.loky import get_reusable_executor

    files = {name: tmp_path / f"{name}.txt" for name in ("train", "valid", "test")}
    for file in files.values():
        file.write_text("a small text, again and again\n" * 40)
    own = ("data.name=files", *(f"data.{name}={file}" for name, file in files.items()))
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=8")
    try:
        assert main("-m", *launcher, *language_models.TINY, *own, "norm=rms,ln", "threads=null").status == 0
    finally:
        get_reusable_executor().shutdown(wait=True)
    runs = [result.read(folder) for folder in record.find_runs(tmp_path)]
    assert [run.run["norm"] for run in runs] == ["ln", "rms"]
    for run in runs:
        assert (run.status["status"], run.status["step"]) == ("finished", 2)
        assert run.run["sessions"][0]["threads"] == cores.threads(2)
