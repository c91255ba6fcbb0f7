"""Runs that are disturbed: ``python scripts/disturb.py``. ``end_to_end/test_resume.py`` kills a run by its parts."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import disturb
import pytest

SEED = "rnnsearch/demo/rms/seed0"


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("part", "times"),
    [("chaos", 3), ("chaos_sweep", 2), ("campaign_kills", 2), ("preempted_sweep", 1), ("ray_node_lost", 1)],
)
def test_disturbed_runs_end_as_undisturbed_ones(part: str, times: int) -> None:
    command = [sys.executable, disturb.__file__, part, "--times", str(times)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was lost, repeated or different" in done.stdout


def write(folder: Path, status: str = "finished", starts: tuple[int, ...] = (0,), step: int = 40) -> Path:
    """Write the record of a run whose sessions began at these steps, with a checkpoint of 100 zeros."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints/last.pt").write_bytes(bytes(100))
    (folder / "status.json").write_text(json.dumps({"status": status, "step": step, "process": 17}))
    (folder / "run.json").write_text(json.dumps({"sessions": [{"from_step": start} for start in starts]}))
    (folder / "metrics.jsonl").write_text(json.dumps({"step": step, "split": "train"}) + "\n")
    return folder


@pytest.mark.parametrize(
    ("starts", "not_continued", "lost_steps"),
    [((0, 40), 0, 0), ((0,), 0, 1), ((0, 0), 1, 1), ((0, 38), 0, 1), ((0, 40, 60), 0, 1), ((4,), 1, 1)],
)
def test_sessions_that_lost_steps(starts: tuple[int, ...], not_continued: int, lost_steps: int, tmp_path: Path) -> None:
    write(tmp_path / SEED, starts=starts)
    assert len(disturb.not_continued(tmp_path)) == not_continued
    assert len(disturb.lost_steps(disturb.starts(tmp_path), {"rms/seed0": 39})) == lost_steps


def test_each_job_gets_sigusr2_and_some_sigkill_after_it() -> None:
    moments = disturb.moments(2, random.Random(0)).values()
    signals = sorted(([number for number, _ in of_run] for of_run in moments), key=len)
    assert signals == [[signal.SIGUSR2]] * 10 + [[signal.SIGUSR2, signal.SIGKILL]] * 2
    assert all(of_run == sorted(of_run, key=lambda moment: moment[1]) for of_run in moments)


def test_files_of_finished_runs_are_not_damaged(tmp_path: Path) -> None:
    results = tmp_path / "results/rnnsearch/demo/rms"
    write(results / "seed0")
    for fault in ("checkpoint", "swap", "record"):
        for number in range(20):
            write(results / f"seed1{fault}{number}", "interrupted")
            assert "seed1" in disturb.damage_files(fault, tmp_path, random.Random(number))
    assert disturb.damage_files("cache", tmp_path, random.Random(0)) == disturb.NOTHING


def test_running_runs_are_those_whose_status_says_so(tmp_path: Path) -> None:
    write(tmp_path / "a/seed0")
    folder = write(tmp_path / "a/seed1", "running", step=60)
    write(tmp_path / "a/seed1.old0", "running")
    assert disturb.running(tmp_path) == {folder: (17, 60)}


@pytest.mark.parametrize(
    ("printed", "results", "identical", "errors"),
    [
        ("nothing", [{}, {SEED: {"loss": 1}}], 1, [f"lost: {SEED} did not finish, and no message says why"]),
        ("failed: rms/seed0: the checkpoint is damaged", [{}, {SEED: {"loss": 1}}], 1, []),
        ("", [{SEED: {"loss": 2}}], 0, [f"different: {SEED}: /loss: 1, 2"]),
    ],
)
def test_a_run_that_fails_without_a_message_or_has_another_result_is_an_error(
    printed: str,
    results: list[dict[str, disturb.Found]],
    identical: int,
    errors: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, report = tmp_path / "log.txt", disturb.Report()
    log.write_text("earlier\n")
    monkeypatch.setattr(disturb, "contents", lambda _: results.pop(0))
    monkeypatch.setattr(disturb, "launch", lambda *_: log.open("a").write(f"{printed}\n"))
    disturb.check(tmp_path, {SEED: {"loss": 1}}, [], log, report)
    assert (report.identical, report.errors) == (identical, errors)


def test_the_node_that_continues_a_run_begins_at_a_checkpoint() -> None:
    for starts, nodes, right in (([0, 40], [2, 1], True), ([0], [2], False), ([0, 47], [2, 1], False)):
        assert (disturb.not_from_a_checkpoint({"a": 60}, {"a": starts}, {"a": nodes}) == []) == right
