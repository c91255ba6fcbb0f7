"""What a campaign prints: its plan with costs, how its pilot went, and its verdicts."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rmsexp import record
from rmsexp.campaign import cost, plan
from rmsexp.campaign.question import Question
from rmsexp.campaign_file import Job
from rmsexp.compare.records import names
from rmsexp.compare.records.campaigns import Campaign
from rmsexp.rules import score

STAGES = ("pilot", "tune", "final")


def print_plan(question: Question) -> None:
    campaign, results = plan.update(question)
    print(f"{campaign.name}: {campaign.question}")
    for job in campaign.jobs:
        print(f"  {job.stage:6}{results[job].status:13}{job.folder}")
    spent = cost.spent(question, results)
    coming = _coming(campaign)
    left = [*(job for job in campaign.jobs if not results[job].ended), *coming]
    estimated = cost.estimates(question, left, spent, lambda line: print(line, file=sys.stderr, flush=True))
    print("runs and hours (uncontended, one after the other):")
    for stage in STAGES:
        done = [job for job in spent if job.stage == stage]
        open_ = [job for job in left if job.stage == stage]
        print(
            f"  {stage:6} done {len(done):3}, {_hours(spent[job] for job in done)}; "
            f"left {len(open_):3}, {_hours(estimated[job] for job in open_)}"
        )
    if coming:
        print("  more may follow: tuning extends the grid where a best rate is at its edge, and final seeds by spread")
    for line in [*pilot(campaign, question), *campaign.remarks(results)]:
        print(line)
    print(f"plan    {campaign.path}")


def _coming(campaign: Campaign) -> list[Job]:
    """Return the runs that are certain to come but not planned yet, at the lowest rate, with empty folders."""
    runs: list[Job] = []
    tuned = {(job.norm, job.rate) for job in campaign.jobs if job.stage == "tune"}
    final = any(job.stage == "final" for job in campaign.jobs)
    for norm in campaign.norms:
        rates = max(1, len({rate for name, rate in tuned if name == norm}))
        planned = sum(job.stage == "tune" and job.norm == norm for job in campaign.jobs)
        both = rates + 2 * (len(campaign.seeds.tune) - 1)
        if not final:
            runs += [Job("tune", norm, campaign.grid[0], 0, "")] * max(0, both - planned)
            count = plan.final_count(campaign, norm, campaign.seeds.look)
            runs += [Job("final", norm, campaign.grid[0], seed, "") for seed in range(count)]
    return runs


def _hours(seconds: Iterable[float]) -> str:
    return f"{sum(seconds) / 3600:.2f} h"


def pilot(campaign: Campaign, question: Question) -> list[str]:
    """Return a line for each pilot run: how its metric moved, and whether it still improves at the end.

    The metric is that of tuning, on the first 256 validation examples.
    """
    lines = []
    factor, unit = names.scale_and_unit(campaign.tuned_by.metric)
    for job in (job for job in campaign.jobs if job.stage == "pilot"):
        files = record.RunFolder(question.results / job.folder)
        rows = files.read_metrics()[0] if files.metrics_path.exists() else []
        values = [factor * row[campaign.tuned_by.metric] for row in rows if row["split"] == score.INTERIM]
        if len(values) == score.EVALUATIONS:
            gain = abs(values[-1] - values[-1 - score.EVALUATIONS // 5])
            lines.append(
                f"pilot {job.norm}: {campaign.tuned_by.metric} {values[0]:.4g} at first, {values[-1]:.4g} {unit} at "
                f"the end; it moved by {gain:.2g} in the last fifth"
            )
    return lines


def print_verdicts(question: Question) -> None:
    campaign, results = plan.update(question)
    for norm, choice in campaign.choice(results).items():
        rate = "none: it diverged at every rate" if choice.rate is None else f"{choice.rate:g}"
        edge = f", the {choice.edge} of the grid" if choice.edge else ""
        print(f"rate of {norm}: {rate}{edge}")
    if undecided := campaign.undecided(results):
        print(f"not decided yet: {undecided}; repeat the command to go on")
    for verdict in campaign.verdicts(results):
        interval = f"{verdict.difference:+.3g} ({verdict.low:+.3g} to {verdict.high:+.3g})"
        print(f"{verdict.outcome}: {verdict.claim.claim}: {interval}, {verdict.pairs} seeds; {verdict.reason}")
    for line in campaign.remarks(results):
        print(line)
    print(f"next    python -m rmsexp.report {question.results}")
