"""Campaigns whose claims are about slopes along a ladder, or about stable ranges of rates."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from helpers.campaigns import ask, do

from rmsexp import config
from rmsexp.campaign import question
from rmsexp.campaign import results as campaign_results
from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.question import Question
from rmsexp.report.tables import verdicts

SLOPE = {"claim": "The difference is the same", "test": "equivalence", "a": "rms", "b": "ln", "margin": 0.5}
WIDER = {"claim": "RMSNorm has the wider range", "test": "superiority", "a": "rms", "b": "ln"}
LADDER = {"schedule.steps": [20, 40, 80], "schedule.warmup": [2, 4, 8]}
FINAL = {"min_seeds": 4, "max_seeds": 4}
ENDS = "+schedule.steps=20+schedule.warmup=2", "+schedule.steps=80+schedule.warmup=8"

pytestmark = pytest.mark.usefixtures("quick_folders")


def with_ladder(folder: Path) -> Question:
    """Return a campaign of a task whose schedule has a warm-up."""
    runs = {"task": "transformer", "scale": "demo", "norm.impl": "eager"}
    tune = {"over": {"optim.lr": [1.0e-3, 2.0e-3, 4.0e-3]}, "by": "valid loss"}
    final = FINAL | {"score": "test loss"}
    return ask(folder, runs=runs, tune=tune, final=final, ladder=LADDER, claims=[SLOPE], rules=2)


def loss(job: Job) -> float:
    """Return a loss. RMSNorm loses 0.3 more with each doubling of the steps."""
    doublings = math.log2(int(job.norm.partition("steps=")[2].partition("+")[0]) / 20)
    best = 2e-3 if "steps=20" in job.norm else 1e-3 * 2**0.5
    noise = 0.01 * (job.seed % 3) * len(job.norm)
    return abs(math.log2(job.rate / best)) + doublings * (0.3 if job.norm.startswith("rms") else 0.0) + noise


def test_a_ladder_is_tuned_at_its_ends_and_decided_by_slopes(tmp_path: Path) -> None:
    asked = with_ladder(tmp_path)
    rounds = do(asked, loss)
    tuned = {job.norm for jobs in rounds for job in jobs if job.stage == "tune"}
    assert tuned == {norm + end for norm in ("ln", "rms") for end in ENDS}
    final = {(job.norm, job.rate) for job in rounds[-1]}
    assert len(rounds[-1]) == 2 * 3 * 4
    by_norm = dict(final)
    first, last = (by_norm["rms" + end] for end in ENDS)
    between = by_norm["rms+schedule.steps=40+schedule.warmup=4"]
    assert (first, last) == (2e-3, pytest.approx(1e-3 * 2**0.5, rel=1e-3))
    assert between == pytest.approx(math.sqrt(first * last), rel=1e-3)
    campaign = asked.update()
    (verdict,) = campaign.verdicts
    assert verdict.outcome == "supported"
    assert verdict.difference == pytest.approx(-0.3)
    ends = campaign.choice
    r = [math.hypot(ends[norm + ENDS[0]].uncertainty, ends[norm + ENDS[1]].uncertainty) / 2 for norm in ("ln", "rms")]
    assert verdict.rates == pytest.approx(math.hypot(*r) / 2)
    row = verdicts.table([campaign]).iloc[0]
    assert (row["of"], row["unit"]) == ("slope", "nats per doubling of schedule.steps")


def test_a_campaign_with_a_ladder_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = with_ladder(tmp_path)
    do(asked, loss)
    monkeypatch.setattr(question, "code", lambda: {"commit": "abc", "code": "0"})
    asked.register()
    campaign = asked.update()
    again = campaign_results.load(campaign.path)
    assert again == campaign
    assert not again.remarks
    changed = campaign.path.read_text().replace('"schedule.warmup": [\n   2.0', '"schedule.warmup": [\n   3.0')
    assert changed != campaign.path.read_text()
    campaign.path.write_text(changed)
    with pytest.raises(ValueError, match="norms"):
        campaign_results.load(campaign.path)


def test_a_ladder_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    for key in ("norm.optim.lr", "schedule.stops"):
        with pytest.raises(config.ConfigError, match=key):
            ask(tmp_path, ladder={"schedule.steps": [20, 40], key.removeprefix("norm."): [1, 2]}, claims=[SLOPE])


def recall(job: Job) -> float:
    """Return a recall with its best rate at 2e-3, which falls less steeply with RMSNorm."""
    octaves = abs(math.log2(job.rate / 2e-3))
    return 20 - octaves**2 * (1 if job.norm == "rms" else 4) + 0.05 * (job.seed % 3) * octaves * len(job.norm)


def ask_for_ranges(folder: Path) -> Question:
    rates = [5e-4, 1e-3, 2e-3, 4e-3, 8e-3]
    return ask(folder, tune={"over": {"optim.lr": rates}}, final=FINAL | {"tolerance": 1.5}, claims=[WIDER], rules=2)


def test_stable_ranges_are_decided_by_their_widths(tmp_path: Path) -> None:
    asked = ask_for_ranges(tmp_path)
    rounds = do(asked, recall)
    assert {job.stage for jobs in rounds for job in jobs} == {"final"}
    assert [(job.norm, job.seed) for job in rounds[0]] == [(norm, 0) for norm in ("ln", "rms") for _ in range(5)]
    campaign = asked.update()
    ranges = campaign.ranges
    assert None not in ranges.values()
    (verdict,) = campaign.verdicts
    assert verdict.outcome == "supported"
    widths = campaign.scores
    assert verdict.difference == pytest.approx(sum(widths["rms"][seed] - widths["ln"][seed] for seed in range(4)) / 4)
    assert verdict.difference > 1
    row = verdicts.table([campaign]).iloc[0]
    assert (row["of"], row["unit"]) == ("stable range", "octaves")
    assert campaign_results.load(campaign.path) == campaign


def test_a_range_that_reaches_the_end_of_the_grid_bounds_a_claim_on_one_side_only(tmp_path: Path) -> None:
    asked = ask_for_ranges(tmp_path)
    do(asked, lambda job: 20.0 if job.norm == "ln" else recall(job))
    campaign = asked.update()
    (verdict,) = campaign.verdicts
    assert (verdict.low, verdict.outcome) == (-math.inf, "refuted")
    assert campaign.remarks_on(campaign.claims[0])[-1].startswith("the stable range of ln reaches an end of the grid")
    do_wide = ask_for_ranges(tmp_path / "other")
    do(do_wide, lambda job: 20.0 if job.norm == "rms" else recall(job))
    campaign = do_wide.update()
    (verdict,) = campaign.verdicts
    assert (verdict.high, verdict.outcome) == (math.inf, "supported")


def test_tuning_runs_may_have_options_of_their_own(tmp_path: Path) -> None:
    tune = {"over": {"optim.lr": [1.0e-3, 2.0e-3, 4.0e-3]}, "runs": {"schedule.steps": 40}}
    asked = ask(tmp_path, tune=tune)
    tuned, final = (asked.job(stage, "rms", 1e-3, 0).config for stage in ("tune", "final"))
    assert (tuned.schedule.steps, final.schedule.steps) == (40, 20)
    do(asked, recall)
    campaign = asked.update()
    assert "its rates were chosen with schedule.steps=40" in campaign.remarks
    assert campaign_results.load(campaign.path) == campaign
