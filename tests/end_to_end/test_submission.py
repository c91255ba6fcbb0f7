"""Sweeps whose runs are jobs of submitit: pre-emption, options, and machines without SLURM."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.campaign_runs import RUNS
from helpers.stopping import assert_same

from rmsexp import config, record, runner, submission, sweep
from rmsexp.command_line import ReportedError

WORDS = [*(f"{key}={value}" for key, value in RUNS.items()), "schedule.steps=200", "checkpoint_every=100", "threads=1"]


def launcher(name: str, folder: Path) -> dict[str, Any]:
    composed = config.compose([f"hydra/launcher={name}", f"results={folder}"], hydra=True)
    return config.plain_values(composed.hydra.launcher)


def send(number: signal.Signals, results: Path, step: int, ended: threading.Event) -> None:
    """Send a signal to the process of the only run in ``results`` after this step."""
    while not ended.wait(0.02):
        folders = [record.RunFolder(folder) for folder in record.find_runs(results)]
        if folders and folders[0].metrics_path.exists():
            rows, status = folders[0].read_last_rows(1 << 12), folders[0].read_status()
            if status["status"] == "running" and rows and rows[-1]["step"] >= step:
                os.kill(status["process"], number)
                return


@pytest.mark.minutes
def test_a_preempted_job_is_requeued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run is saved before submitit gets the signal, and continued, although it was begun with force=true."""
    results = tmp_path / "preempted"
    assert runner.execute(config.job([*WORDS, f"results={tmp_path / 'whole'}"])).status == "finished"
    ended = threading.Event()
    sender = threading.Thread(target=send, args=(signal.SIGUSR2, results, 20, ended))
    sender.start()
    try:
        run = [*WORDS, f"results={results}", "force=true"]
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


def test_without_slurm_a_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ReportedError, match='the jobs cannot be submitted: Could not detect "srun"'):
        submission.do([WORDS], None, launcher("slurm", tmp_path), sweep.do_run)


def test_the_options_reach_submitit(tmp_path: Path) -> None:
    """Its default would requeue no job whose time is over."""
    options = launcher("slurm", tmp_path)
    assert options["max_num_timeout"] > 0
    assert submission.executor_name(options) == "slurm"
    executor = submission._executor(launcher("submitit_local", tmp_path))
    assert executor._executor.parameters["timeout_min"] == 60


@pytest.mark.parametrize(("name", "expected"), [("submitit_local", "local"), ("joblib", None), ("basic", None)])
def test_other_launchers_are_left_to_hydra(name: str, expected: str | None, tmp_path: Path) -> None:
    assert submission.executor_name(launcher(name, tmp_path)) == expected


def test_a_requeued_job_continues(tmp_path: Path) -> None:
    def do(overrides: Mapping[str, Any], config_dir: str | None) -> str:  # noqa: ARG001
        return "finished"

    again = submission._Work(do).checkpoint(["force=true", "norm=rms"], str(tmp_path))  # type: ignore[arg-type]
    assert again.args == (["force=true", "norm=rms", "force=false"], str(tmp_path))
    assert again.function.do is do
