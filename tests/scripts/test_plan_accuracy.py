"""Estimated and real costs of a campaign's runs."""

from __future__ import annotations

from pathlib import Path

import plan_accuracy
import pytest
from helpers.campaign_runs import ask, write_run

from rmsexp.campaign import plan
from rmsexp.campaign.progress import Cost
from rmsexp.system import clock
from rmsexp.work import cost


def test_a_row_for_each_norm_and_stage_with_runs_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run has 20 seconds in each bucket. Runs of other machines, and unfinished ones, do not count."""
    asked, done = ask(tmp_path), dict[str, int]()
    for job in plan.update(asked)[0].jobs:
        done[job.norm] = done.get(job.norm, 0) + 1
        if job.norm == "rms" and done[job.norm] == 1:
            write_run(asked, job, machine={"id": "other"})
        else:
            write_run(asked, job, float("nan") if job.norm == "rms" and done[job.norm] == 2 else 20)
    monkeypatch.setattr(cost, "trial", lambda _, job: Cost({"ln": 60, "rms": 300}[job.norm], 10))
    rows = plan_accuracy.compared(asked)
    took = 20 * len(clock.BUCKETS)
    assert rows == [
        {"campaign": asked.name, "stage": "tune", "norm": norm, "runs": done[norm] - fewer}
        | {"planned": planned, "took": took}
        for norm, fewer, planned in (("ln", 0, 60), ("rms", 2, 300))
    ]
