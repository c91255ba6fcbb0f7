"""Sweeps whose runs are jobs of submitit: pre-emption, options, and machines without SLURM."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.campaign_runs import RUNS
from helpers.stopping import WARMUP, assert_same, in_training, stop
from submitit.core.job_environment import SignalHandler
from submitit.core.utils import DelayedSubmission, JobPaths, UncompletedJobError

from rmsexp import config
from rmsexp.commands import sweep
from rmsexp.records import record
from rmsexp.system import process
from rmsexp.system.command_line import ReportedError
from rmsexp.work import runner, submission

WORDS = [*(f"{key}={value}" for key, value in RUNS.items()), "schedule.steps=200", "checkpoint_every=100", "threads=1"]


def launcher(name: str, folder: Path) -> dict[str, Any]:
    composed = config.compose([f"hydra/launcher={name}", f"results={folder}"], hydra=True)
    return config.plain_values(composed.hydra.launcher)


def send(number: signal.Signals, results: Path, step: int, ended: threading.Event) -> None:
    """Send a signal to the process of the only run in ``results`` after this step."""
    while not ended.wait(0.02):
        for folder in in_training(results, step):
            os.kill(folder.read_status()["process"], number)
            return


@pytest.mark.minutes
def test_a_preempted_job_is_requeued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run is saved before submitit gets the signal, and continued."""
    results = tmp_path / "preempted"
    assert runner.execute(config.job([*WORDS, f"results={tmp_path / 'whole'}"])).status == "finished"
    ended = threading.Event()
    sender = threading.Thread(target=send, args=(signal.SIGUSR2, results, 20, ended))
    sender.start()
    try:
        run = [*WORDS, f"results={results}"]
        submission.do([run], None, launcher("submitit_local", results), sweep.do_run)
    finally:
        ended.set()
        sender.join()
    (folder,) = record.find_runs(results)
    starts = [session["from_step"] for session in record.RunFolder(folder).read_run()["sessions"]]
    assert len(starts) == 2
    assert 20 <= starts[1] < 100  # no checkpoint is written before, but for the signal
    assert_same(tmp_path / "whole", results)
    assert "rmsexp: finished: run 1 of 1: " in capsys.readouterr().err


@pytest.mark.usefixtures("small_synthetic_data")
@pytest.mark.parametrize(("requeues_left", "error"), [(0, UncompletedJobError), (1, SystemExit)])
def test_what_submitit_raises_after_a_run_was_saved_ends_its_job(
    requeues_left: int, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler, which is the real one here, requeues a job whose time is over, unless it has done so too often."""
    submitted = DelayedSubmission(submission._Work(sweep.do_run), [*WORDS, f"results={tmp_path}"], None)
    submitted.set_timeout(0, requeues_left)
    requeued: list[int] = []
    environment = SimpleNamespace(global_rank=0, _requeue=requeued.append)
    handler = SignalHandler(environment, JobPaths(tmp_path, "7"), submitted)
    stop(monkeypatch, "_update", WARMUP + 7, lambda: signal.raise_signal(signal.SIGUSR2))
    with process.handling(handler.checkpoint_and_try_requeue, [signal.SIGUSR2]), pytest.raises(error):
        submitted.result()
    (folder,) = record.find_runs(tmp_path)
    status = record.RunFolder(folder).read_status()
    assert (status["status"], status["step"], status["checkpoint"]) == ("interrupted", 7, 7)
    assert len(requeued) == requeues_left


def test_without_slurm_a_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ReportedError, match='the jobs cannot be submitted: Could not detect "srun"'):
        submission.do([WORDS], None, launcher("slurm", tmp_path), sweep.do_run)


def test_the_options_reach_submitit(tmp_path: Path) -> None:
    assert submission.executor_name(launcher("slurm", tmp_path)) == "slurm"
    executor = submission._executor(launcher("submitit_local", tmp_path))
    assert executor._executor.parameters["timeout_min"] == 60


def test_the_options_reach_the_jobs_of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """submitit's default is to requeue a job 3 times at the end of its time. SLURM's commands are simulated."""
    for name, line in {"srun": "exit 1", "sbatch": "echo Submitted batch job 7"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    options = launcher("slurm", tmp_path / "results")
    executor = submission._executor(options)
    assert executor._executor.max_num_timeout == options["max_num_timeout"] == 100
    jobs = executor.map_array(submission._Work(sweep.do_run), [WORDS, WORDS], [None, None])
    assert [job.job_id for job in jobs] == ["7_0", "7_1"]
    for job in jobs:
        submitted = DelayedSubmission.load(job.paths.submitted_pickle)
        assert (submitted._timeout_countdown, submitted._timeout_min) == (100, options["timeout_min"])
    (script,) = (tmp_path / "results").rglob("*_submission.sh")
    assert f"#SBATCH --signal=USR2@{options['signal_delay_s']}\n" in script.read_text()


@pytest.mark.parametrize(("name", "expected"), [("submitit_local", "local"), ("joblib", None), ("basic", None)])
def test_other_launchers_are_left_to_hydra(name: str, expected: str | None, tmp_path: Path) -> None:
    assert submission.executor_name(launcher(name, tmp_path)) == expected


def test_a_requeued_job_continues(tmp_path: Path) -> None:
    def do(overrides: Mapping[str, Any], config_dir: str | None) -> str:  # noqa: ARG001
        return "finished"

    again = submission._Work(do).checkpoint(["norm=rms"], str(tmp_path))  # type: ignore[arg-type]
    assert again.args == (["norm=rms"], str(tmp_path))
    assert again.function.do is do
