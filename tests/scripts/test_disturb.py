"""Runs that are disturbed: ``python scripts/disturb.py``. ``end_to_end/test_resume.py`` kills a run by its parts."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import disturb
import pytest

WITH_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an extra")
PARTS = [("chaos", 3), ("stopped_sweep", 2), ("campaign_kills", 2), ("preempted_sweep", 1)]


@pytest.mark.minutes
@pytest.mark.parametrize(("part", "times"), [*PARTS, pytest.param("ray_node_lost", 1, marks=WITH_RAY)])
def test_disturbed_runs_end_as_undisturbed_ones(part: str, times: int) -> None:
    command = [sys.executable, disturb.__file__, part, "--times", str(times)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was lost, repeated or different" in done.stdout


def write(folder: Path, status: str = "finished", starts: tuple[int, ...] = (0,), step: int = 40) -> Path:
    """Write the record of a run whose sessions began at these steps."""
    folder.mkdir(parents=True)
    (folder / "status.json").write_text(json.dumps({"status": status, "step": step, "process": 17}))
    (folder / "run.json").write_text(json.dumps({"sessions": [{"from_step": start} for start in starts]}))
    (folder / "metrics.jsonl").write_text(json.dumps({"step": step, "split": "train"}) + "\n")
    return folder


def test_a_lost_or_different_run_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "undisturbed/rms/seed0")
    write(tmp_path / "different/rms/seed0", step=41)
    write(tmp_path / "lost/rms/seed1")
    for name in ("different", "lost"):
        assert disturb.compare(tmp_path / "undisturbed", tmp_path / name)
