"""What a campaign prints: its plan with costs, and its verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

from rmsexp.campaign import plan, timing
from rmsexp.campaign.answers import answer_of
from rmsexp.campaign.campaign_file import Stage
from rmsexp.campaign.question import Question
from rmsexp.campaign.remarks import differing_models, remarks
from rmsexp.campaign.runs import pilot
from rmsexp.report.tables import verdicts
from rmsexp.rules import seeds, selection
from rmsexp.system.command_line import command, inform
from rmsexp.work import cost


def print_plan(question: Question) -> None:
    """Print the runs with their states, the cost by stage, how the pilot went, and what to do next."""
    problems: list[str] = []
    campaign, results = plan.update(question, problems)
    print(f"{campaign.name}: {campaign.question}")
    for job in campaign.jobs:
        print(f"  {job.stage:6}{results[job].status:13}{job.folder}")
    spent, planned = cost.spent(question, results), [job for job in campaign.jobs if not results[job].ended]
    left = [*planned, *campaign.coming(results, 0, campaign.seeds.min_seeds)]
    most_seeds = (
        campaign.seeds.max_seeds if any(map(seeds.may_need_more, campaign.claims)) else campaign.seeds.min_seeds
    )
    most = left
    if campaign.seeds.needed is None and left:
        most = [*planned, *campaign.coming(results, selection.EXTENSIONS, most_seeds)]
    estimated = cost.estimates(question, most, spent, results, inform)
    print("runs and uncontended hours, one after the other:")
    for stage in get_args(Stage):
        done, missing = ([job for job in jobs if job.stage == stage] for jobs in (spent, left))
        took, takes = _hours(spent[job].seconds for job in done), _hours(estimated[job] for job in missing)
        print(f"  {stage:6} done {len(done):3}, {took}; left {len(missing):3}, {takes}")
    if (timed := timing.of_campaign(question)) is not None:
        print(f"  timing {f'left, about {timed.budget:.0f} s' if timed.is_left() else 'done'}")
    if len(most) > len(left):
        reasons = []
        if most_seeds > campaign.seeds.min_seeds:
            reasons.append(f"the spread of scores asks for all {most_seeds} seeds")
        if not any(job.stage == "final" for job in campaign.jobs):
            reasons.append(f"best rates at its edge extend the grid by {selection.EXTENSIONS} rates")
        print(f"  left up to {len(most)}, {_hours(estimated[job] for job in most)}, if {' and '.join(reasons)}")
    _print_lines([*problems, *pilot(campaign, results, question), *remarks(campaign, results)])
    print(f"plan    {campaign.path}")
    print(f"next    {_next(question, bool(left))}")


def _hours(seconds: Iterable[float]) -> str:
    return f"{sum(seconds) / 3600:.2f} h"


def print_verdicts(question: Question) -> None:
    """Print the chosen rates, and the verdicts or why there are none yet."""
    problems: list[str] = []
    campaign, results = plan.update(question, problems)
    choices = campaign.choice(results)
    for norm, choice in choices.items():
        rate = "none: it diverged at every rate" if choice.rate is None else f"{choice.rate:g}"
        edge = f", the {choice.edge} of the grid" if choice.edge else ""
        print(f"rate of {norm}: {rate}{edge}")
    left = [job for job in campaign.jobs if not results[job].ended]
    undecided = campaign.undecided(results)
    if undecided:
        print(f"not decided yet: {undecided}")
    answer = answer_of(campaign, campaign.name, results)
    if not undecided:
        _print_lines([verdicts.line(row) for row in verdicts.table([answer]).to_dict("records")])
    of_claims = [line for claim in answer.every_claim for line in differing_models(campaign, claim, results)]
    _print_lines([*problems, *answer.remarks, *dict.fromkeys(of_claims)])
    print(f"next    {_next(question, bool(left))}")


def _next(question: Question, left: bool) -> str:
    """Return the next command: the campaign's own if runs or its timing are left, else the report."""
    timed = timing.of_campaign(question)
    left = left or (timed is not None and timed.is_left())
    words = ["rmsexp.campaign", *question.command()] if left else ["rmsexp.report", str(question.results)]
    return command(*words)


def _print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        print(line)
