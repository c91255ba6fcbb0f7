"""Jobs of a sweep that are pre-empted and killed: ``python scripts/preempted_sweep.py``."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import preempted_sweep
import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.minutes
def test_preempted_and_killed_jobs_change_nothing() -> None:
    command = [sys.executable, SCRIPTS / "preempted_sweep.py", "--runs", "2", "--kills", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all runs equal those of the undisturbed sweep" in done.stdout


def test_each_run_gets_sigusr2_and_some_sigkill_after_it() -> None:
    targets = preempted_sweep.targets(["ln", "rms"], [0, 1, 2], 2, random.Random(0))
    signals = [[number for number, _ in target.moments] for target in targets]
    assert sorted(signals, key=len) == [[signal.SIGUSR2]] * 4 + [[signal.SIGUSR2, signal.SIGKILL]] * 2
    assert all(target.moments == sorted(target.moments, key=lambda moment: moment[1]) for target in targets)


@pytest.mark.parametrize(("starts", "errors"), [([0, 40], 0), ([0], 1), ([0, 0], 1), ([0, 38], 1), ([0, 40, 60], 1)])
def test_runs_that_lost_steps(starts: list[int], errors: int, tmp_path: Path) -> None:
    folder = tmp_path / "task" / "setting" / "ln" / "seed0"
    folder.mkdir(parents=True)
    run = {"dataset": {"digest": ""}, "sessions": [{"from_step": step} for step in starts]}
    (folder / "run.json").write_text(json.dumps(run))
    target = preempted_sweep.Target("ln", 0, [], reached=39)
    assert len(preempted_sweep.lost_steps(tmp_path, [target])) == errors
