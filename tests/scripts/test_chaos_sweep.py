"""Sweeps that are disturbed by faults: ``python scripts/chaos.py --sweep``."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import chaos_sweep
import pytest

from rmsexp.records import record

SCRIPTS = Path(__file__).parents[2] / "scripts"

SEED = "results/rnnsearch/demo/rms/seed0"


@pytest.mark.minutes
@pytest.mark.slow
def test_a_disturbed_sweep_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    """The sweep is copied from a process of its own, because copies of pytest's would have its threads' locks."""
    sweep = "chaos_sweep.disturb(2, pathlib.Path(sys.argv[1]), 0, ('norm=rms,bn', 'seed=0'))"
    program = f"import pathlib, sys; sys.path.append(sys.argv[2]); import chaos_sweep; print({sweep})"
    command = [sys.executable, "-c", program, tmp_path, SCRIPTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert "identical=2, causes=[], errors=[]" in done.stdout, done.stdout + done.stderr


def test_files_of_finished_runs_are_not_damaged(tmp_path: Path) -> None:
    for seed, status in enumerate(("finished", "interrupted")):
        folder = record.RunFolder(tmp_path / f"results/rnnsearch/demo/rms/seed{seed}")
        folder.checkpoints.mkdir(parents=True)
        folder.write_status(status, 3)  # type: ignore[arg-type]
        folder.run_path.write_text("{}")
        (folder.checkpoints / "last.pt").write_bytes(bytes(100))
    for fault in ("checkpoint", "swap", "record"):
        for number in range(20):
            assert "seed1" in chaos_sweep.damage_files(fault, tmp_path, random.Random(number))
            (folder.checkpoints / "last.pt").write_bytes(bytes(100))
            folder.run_path.write_text("{}")
            folder.write_status("interrupted", 3)
    assert chaos_sweep.damage_files("cache", tmp_path, random.Random(0)) == "nothing there yet"


@pytest.mark.parametrize(
    ("printed", "errors", "causes"),
    [
        ("nothing", [f"lost: {SEED} did not finish, and no message says why"], []),
        (f"failed: {SEED}: the checkpoint is damaged", [], [f"failed: {SEED}: the checkpoint is damaged"]),
    ],
)
def test_a_run_that_fails_without_a_message_is_lost(
    printed: str, errors: list[str], causes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a run is an error, also if it ends well when it is done anew; a named cause is none."""
    log, report, done = tmp_path / "log.txt", chaos_sweep.Report(), [{}, {SEED: {"loss": 1}}]
    log.write_text("earlier\n")
    monkeypatch.setattr(chaos_sweep, "contents", lambda _: done.pop(0))
    monkeypatch.setattr(chaos_sweep, "launch", lambda *_: log.open("a").write(f"{printed}\n"))
    chaos_sweep.check(tmp_path, {SEED: {"loss": 1}}, [], log, report)
    assert (report.identical, report.errors, report.causes) == (1, errors, causes)


def test_a_report_can_be_recorded() -> None:
    report = chaos_sweep.Report(identical=2)
    report.ends["SIGKILL"]["exit 0"] += 1
    expected = {"ends": {"SIGKILL": {"exit 0": 1}}, "identical": 2, "causes": [], "errors": []}
    assert json.loads(json.dumps(report.content())) == expected


def test_a_run_with_another_result_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, report = tmp_path / "log.txt", chaos_sweep.Report()
    log.write_text("")
    monkeypatch.setattr(chaos_sweep, "contents", lambda _: {SEED: {"loss": 2}})
    monkeypatch.setattr(chaos_sweep, "launch", lambda *_: None)
    chaos_sweep.check(tmp_path, {SEED: {"loss": 1}}, [], log, report)
    assert report.identical == 0
    assert report.errors == [f"different: {SEED}: /loss: 1, 2"]
