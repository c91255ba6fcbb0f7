"""The test of the detection of contention: its runs, its neighbours and its summary."""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import planted_neighbours
import pytest


def test_all_runs_are_done_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(kind: str, *_: object) -> dict[str, Any]:
        contention = {"state": "disturbed" if kind == "same_core" else "undisturbed", "waited": 0.004, "steal": 0.0}
        return {"kind": kind, "contention": contention, "train_seconds": 10.0, "date": "2026-01-01"}

    monkeypatch.setattr(planted_neighbours, "train", train)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(sys, "argv", ["planted_neighbours.py", f"--results={tmp_path}", "--runs=2", "--quiet=3"])
    planted_neighbours.main()
    (path,) = (tmp_path / "checks").glob("planted_neighbours*/check.json")
    results = json.loads(path.read_text())["results"]
    assert results["threads"] == 1  # of the runs, not of this process
    assert Counter(run["kind"] for run in results["runs"]) == {"quiet": 3, "same_core": 2, "other_core": 2}
