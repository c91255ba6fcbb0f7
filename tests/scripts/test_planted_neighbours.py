"""The test of the detection of contention: the order of its runs, how it goes on, and its neighbours."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import planted_neighbours
import pytest

from rmsexp.train import provenance

Run = Callable[..., None]


def result(kind: str, *, marked: bool, seconds: float = 10.0) -> dict[str, Any]:
    contention = {"state": "contended" if marked else "clear", "waited": 0.004, "steal": 0.0, "based_on": []}
    identity = {"code": provenance.code(), "machine": provenance.machine_id(), "date": "2026-01-01"}
    identity |= {"commit": "abc", "dirty": False}
    return {"kind": kind, "contention": contention, "train_seconds": seconds} | identity


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the kind of each run; the runs are not done, and those beside neighbours are marked."""
    trained: list[str] = []

    def train(kind: str, words: list[str], cores: list[int]) -> dict[str, Any]:
        del words, cores
        trained.append(kind)
        if len(trained) == 4:
            raise KeyboardInterrupt
        return result(kind, marked=kind == "same_core")

    monkeypatch.setattr(planted_neighbours, "train", train)
    return trained


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*words: str) -> None:
        words = ("planted_neighbours.py", f"--results={tmp_path}", "--runs=2", "--quiet=3", *words)
        monkeypatch.setattr(sys, "argv", list(words))
        planted_neighbours.main()

    return run


def test_the_same_command_goes_on(kinds: list[str], run: Run, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run()
    lines = tmp_path / "checks/planted_neighbours.jsonl"
    assert len(lines.read_text().splitlines()) == 3
    assert kinds == planted_neighbours.order(2, 3)[:4]
    with pytest.raises(SystemExit, match="has parts of another command, code or machine"):
        run("max_steps=7")
    run()
    assert [*kinds[:3], *kinds[4:]] == planted_neighbours.order(2, 3)
    assert not lines.exists()
    (path,) = (tmp_path / "checks").glob("planted_neighbours*/check.json")
    results = json.loads(path.read_text())["results"]
    assert results["threads"] == 1  # of the runs, not of this process
    assert Counter(run["kind"] for run in results["runs"]) == {"quiet": 3, "same_core": 2, "other_core": 2}
    assert results["summary"]["same_core"] == {"runs": 2, "marked": 2, "slowdown": 1.0}


def test_the_summary_counts_marked_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [result("quiet", marked=number < 2) for number in range(10)]
    runs += [result("same_core", marked=number < 9, seconds=20.0) for number in range(10)]
    runs += [result("other_core", marked=False)]
    planted_neighbours.summarise(runs)
    assert capsys.readouterr().out.splitlines() == [
        "quiet      2 of 10 marked as contended, NOT as it should be; steps take x1.00 (median)",
        "same_core  9 of 10 marked as contended, as it should be; steps take x2.00 (median)",
        "other_core 0 of 1 marked as contended; steps take x1.00 (median)",
    ]
