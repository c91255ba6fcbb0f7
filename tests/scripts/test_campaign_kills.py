"""Workers of a campaign that are killed: ``python scripts/campaign_kills.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import campaign_kills
import pytest
from campaign_kills import Report, Step

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.minutes
def test_killed_workers_change_nothing() -> None:
    command = [sys.executable, SCRIPTS / "campaign_kills.py", "--kills", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all runs were done once" in done.stdout


def trained(*parts: tuple[int, range]) -> list[Step]:
    """Return the steps of a run, given the processes that trained it, one after the other, with their steps."""
    steps = [(pid, step) for pid, steps in parts for step in steps]
    return [Step(time, pid, "run", step) for time, (pid, step) in enumerate(steps)]


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        (trained((1, range(6))), None),
        (trained((1, range(6)), (2, range(4, 8))), None),  # 1 was killed after the checkpoint of step 4
        (trained((1, range(6)), (2, range(6, 8))), None),
        (trained((1, range(18)), (2, range(20))), "run: 18 steps were trained again after a kill"),
        (trained((2, range(6)), (3, range(4, 8))), "run: step 4 was trained by 3, though 2 lived"),
        (trained((1, range(6)), (1, range(4, 8))), "run: process 1 trained step 4 after 5"),
        (trained((1, range(6)), (2, range(7, 8))), "run: process 2 began at step 7, after 5"),
        (trained((1, range(1, 3))), "run: process 1 began at step 1, after -1"),
        (trained((1, range(2)), (2, range(2)), (1, range(2, 4))), "run: step 2 was trained by 1, though 2 lived"),
    ],
)
def test_steps_that_are_repeated_or_left_out(steps: list[Step], error: str | None) -> None:
    """Process 1 was killed, the others were not."""
    report = Report(steps=steps[::-1], killed=[1])
    assert campaign_kills.repeated(report)[:1] == ([] if error is None else [error])


@pytest.mark.parametrize(("starts", "errors"), [([0, 4, 8], 0), ([4], 1), ([0, 8, 4], 1), ([0, 4, 4], 1)])
def test_sessions_continue_each_other(starts: list[int], errors: int, tmp_path: Path) -> None:
    folder = tmp_path / "task" / "setting" / "ln" / "seed0"
    folder.mkdir(parents=True)
    run = {"dataset": {"digest": ""}, "sessions": [{"from_step": step} for step in starts]}
    (folder / "run.json").write_text(json.dumps(run))
    assert len(campaign_kills.sessions(tmp_path)) == errors
