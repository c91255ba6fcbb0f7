"""Runs on a cluster of Ray that loses a node: ``python scripts/ray_node_lost.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import ray_node_lost
from ray_node_lost import Observer

from rmsexp.records import record

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.minutes
def test_a_lost_node_changes_nothing() -> None:
    command = [sys.executable, SCRIPTS / "ray_node_lost.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all runs equal those of the undisturbed sweep" in done.stdout


def write(results: Path, name: str, status: record.Status, step: int) -> record.RunFolder:
    """Write the record of a run of this process."""
    folder = record.RunFolder(results / "task" / "setting" / name / "seed0")
    folder.path.mkdir(parents=True)
    folder.metrics_path.write_text(json.dumps({"step": step, "split": "train"}) + "\n")
    with folder.locked():
        folder.write_status(status, step)
    return folder


def test_what_the_processes_of_a_cluster_do(tmp_path: Path) -> None:
    """Here this process is on node 2: its parent stands for the raylet."""
    this = psutil.Process()
    observer = Observer(tmp_path, [this, this.parent()])
    for name, status in {"a": "finished", "b": "diverged", "c": "running"}.items():
        write(tmp_path, name, status, 40)  # type: ignore[arg-type]
    with write(tmp_path, "d", "running", 60).locked():
        observer.look()
    run = "task/setting/d/seed0"
    assert (observer.ended, observer.steps) == (2, {run: 60})  # no process holds the lock of "c"
    assert observer.places == {run: {os.getpid(): 2}}
    assert (observer.trained_by(1), observer.trained_by(2)) == ({}, {run: 60})


@pytest.mark.parametrize(
    ("ended", "steps", "due"),
    [(4, [60, 100], True), (3, [60, 100], False), (4, [60], False), (4, [60, 20], False), (4, [60, 280], False)],
)
def test_a_node_is_removed_in_the_middle(ended: int, steps: list[int], due: bool, tmp_path: Path) -> None:
    reached = {f"run{number}": step for number, step in enumerate(steps)}
    observer = Observer(tmp_path, [], {run: {1: 2} for run in reached}, ended, reached)
    assert ray_node_lost.may_be_lost(observer) == due


@pytest.mark.parametrize(
    ("starts", "nodes", "right"),
    [([0, 40], [2, 1], True), ([0], [2], False), ([0, 0], [2, 1], False), ([0, 47], [2, 1], False)],
)
def test_runs_of_the_lost_node_are_continued_from_a_checkpoint(
    starts: list[int], nodes: list[int], right: bool
) -> None:
    assert (ray_node_lost.continued(["a"], {"a": starts}, {"a": nodes}) == []) == right
