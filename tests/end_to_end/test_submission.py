"""Sweeps whose runs are jobs of submitit. ``scripts/disturb.py preempted_sweep`` pre-empts such jobs."""

import sys
from pathlib import Path

import pytest

from rmsexp import config
from rmsexp.commands import run


def test_without_slurm_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["rmsexp"])  # launch sets sys.argv for Hydra; this restores it after the test
    monkeypatch.setenv("PATH", "")
    assert run.main(["-m", "hydra/launcher=slurm", f"results={tmp_path}"]) == 1
    assert 'Could not detect "srun"' in capsys.readouterr().err


def test_jobs_of_slurm_are_requeued() -> None:
    """submitit's default is to requeue a job 3 times at the end of its time."""
    launcher = config.compose(["hydra/launcher=slurm"], hydra=True).hydra.launcher
    assert launcher._target_.endswith("hydra_submitit_launcher.submitit_launcher.SlurmLauncher")
    assert (launcher.max_num_timeout, launcher.name) == (100, "rmsexp")
