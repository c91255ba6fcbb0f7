"""Sweeps whose runs are jobs of submitit: pre-emption, and machines without SLURM."""

import signal
import sys
import threading
from pathlib import Path

import pytest
from helpers.campaigns import RUNS
from helpers.stopping import assert_same, send

from rmsexp import config
from rmsexp.commands import run
from rmsexp.records import record
from rmsexp.work import runner

WORDS = [*(f"{key}={value}" for key, value in RUNS.items()), "schedule.steps=200", "checkpoint_every=100", "threads=1"]


@pytest.fixture(autouse=True)
def _arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["rmsexp"])  # launch sets sys.argv for Hydra; this restores it after the test


@pytest.mark.minutes
def test_a_preempted_job_is_requeued(tmp_path: Path) -> None:
    """The run is saved before submitit gets the signal, and continued."""
    results = tmp_path / "preempted"
    assert runner.execute(config.job([*WORDS, f"results={tmp_path / 'whole'}"])).status == "finished"
    ended = threading.Event()
    sender = threading.Thread(target=send, args=(signal.SIGUSR2, results, 20, ended.is_set))
    sender.start()
    try:
        assert run.main(["-m", "hydra/launcher=submitit_local", *WORDS, f"results={results}"]) == 0
    finally:
        ended.set()
        sender.join()
    (folder,) = record.find_runs(results)
    starts = [session["from_step"] for session in record.RunFolder(folder).read_run()["sessions"]]
    assert len(starts) == 2
    assert 20 <= starts[1] < 100  # no checkpoint is written before, but for the signal
    assert_same(tmp_path / "whole", results)


def test_without_slurm_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert run.main(["-m", "hydra/launcher=slurm", *WORDS, f"results={tmp_path}"]) == 1
    assert 'Could not detect "srun"' in capsys.readouterr().err


def test_jobs_of_slurm_are_requeued() -> None:
    """submitit's default is to requeue a job 3 times at the end of its time."""
    launcher = config.compose(["hydra/launcher=slurm"], hydra=True).hydra.launcher
    assert launcher._target_.endswith("hydra_submitit_launcher.submitit_launcher.SlurmLauncher")
    assert (launcher.max_num_timeout, launcher.name) == (100, "rmsexp")
