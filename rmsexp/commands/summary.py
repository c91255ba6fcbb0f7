"""What a campaign and the paper's items print: the plan with costs; then verdicts, or the files that were drawn."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from rmsexp.campaign import plan
from rmsexp.campaign.answers import answer_of
from rmsexp.campaign.items import Asked, Items
from rmsexp.campaign.remarks import differing_models
from rmsexp.campaign.runs import CampaignRuns
from rmsexp.campaign.time_left import Cost, Planned, Trial, begun, progress, seconds_left, total
from rmsexp.campaign.time_left import cost as cost_of
from rmsexp.records import record
from rmsexp.system import atomic
from rmsexp.system.command_line import ReportedError, command, inform, report
from rmsexp.work import cost


def print_plan(asked: Asked) -> None:
    """Print the runs with their states, what they took and take, what else is to be known, and what to do next.

    Of several items the runs are counted, not listed.
    """
    planned, several = asked.plan(), isinstance(asked, Items) and len(asked.items) > 1
    print(asked.title)
    for name, jobs in planned.stages.items():
        for job in [] if several else jobs:
            print(f"  {name:5} {planned.states[job]:13}{job.folder}")
    ended = [job for job, state in planned.states.items() if state in record.ENDED]
    spent = {job: cost_of(asked.results / job.folder) for job in ended}
    finished = {
        job: found
        for job, found in spent.items()
        if planned.states[job] == "finished" and cost.is_from_this_machine(asked.results / job.folder)
    }
    left, trial = begun(asked.results, planned), _trials(asked, finished)
    whole = progress(planned, finished, left, spent, trial)
    print("runs and uncontended hours, one after the other:")
    for stage in whole.stages:
        number = stage.left + stage.coming
        drawn = f"; {'' if _page(asked, stage.name).exists() else 'not '}drawn" if isinstance(asked, Items) else ""
        done = f"{stage.ended:3}, {_hours(stage.seconds)}"
        print(f"  {stage.name:6} done {done}; left {number:3}, {_hours(stage.seconds_left)}{drawn}")
    if several:
        print(f"  {len(ended)} done, {len(planned.states) - len(ended)} left, since items share runs")
    for timing in asked.timings():
        state = f"left, about {timing.budget:.0f} s" if timing.is_left() else "done"
        print(f"  timing {state}: {', '.join(timing.jobs)} in {timing.folder.relative_to(asked.results)}")
    most, reasons = planned.most
    if most:
        seconds = seconds_left(most, finished, left, planned.longer, trial)
        hours = _hours(total(seconds[job] for job in most))
        print(f"  left up to {len(most)}, {hours}, if {reasons}")
    for line in planned.lines:
        print(line)
    if planned.path is not None:
        print(f"plan    {planned.path}")
    _print_next(asked, whole.left > 0)


def _trials(asked: Asked, finished: Mapping[Planned, Cost]) -> Trial:
    """Return a function that estimates the cost of a run if no run of its norm has finished.

    It returns the mean cost of finished runs that are alike, or else what a trial of some steps says.
    """
    known: dict[str, list[Cost]] = {}
    for job, found in finished.items():
        known.setdefault(asked.alike(job), []).append(found)

    def trial(job: Planned) -> Cost | None:
        alike = asked.alike(job)
        if alike not in known:
            inform(f"trying {cost.TRIAL_STEPS} steps of {job.norm}, to estimate the cost")
            try:
                tried = cost.trial(asked, job)
            except ReportedError as error:
                report(str(error))
                known[alike] = []
                return None
            if not tried.seconds:  # that one norm diverges tells nothing about others
                return tried
            known[alike] = [tried]
        means = [statistics.fmean(values) for values in zip(*known[alike], strict=True)]
        return Cost(*means) if means else None

    return trial


def _hours(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds / 3600:.2f} h"


def conclude(asked: Asked) -> None:
    """Print the verdicts that the records show, or draw the items."""
    if isinstance(asked, Items):
        draw(asked)
    else:
        print_verdicts(asked)


def print_verdicts(asked: CampaignRuns) -> None:
    """Print the chosen rates, and the verdicts or why there are none yet."""
    from rmsexp.report.tables import verdicts

    problems: list[str] = []
    campaign, results = plan.update(asked.question, problems)
    answer = answer_of(campaign, campaign.name, results)
    for norm, choice in answer.choice.items():
        rate = "none: it diverged at every rate" if choice.rate is None else f"{choice.rate:g}"
        edge = f", the {choice.edge} of the grid" if choice.edge else ""
        print(f"rate of {norm}: {rate}{edge}")
    if answer.undecided:
        print(f"not decided yet: {answer.undecided}")
    lines = [] if answer.undecided else [verdicts.line(row) for row in verdicts.table([answer]).to_dict("records")]
    of_claims = [line for claim in answer.every_claim for line in differing_models(campaign, claim, results)]
    for line in [*lines, *problems, *answer.remarks, *dict.fromkeys(of_claims)]:
        print(line)
    _print_next(asked, not all(result.ended for result in results.values()))


def draw(asked: Items) -> None:
    """Draw the items from what the records have, and print the paths, what is missing, and the next command."""
    from rmsexp.analysis import item_drawing

    for item in asked.items:
        item_drawing.write(asked, item)
        missing = len(asked.missing(item))
        path = _page(asked, item.name)
        print(f"{item.title:14}{path}" + (f" ({missing} runs missing)" if missing else ""))
    if len(asked.items) > 1:
        texts = [_page(asked, item.name).read_text(encoding="utf-8") for item in asked.items]
        heading = f"# Tables and figures of the paper, scale={asked.scale}\n"
        atomic.write_atomic(asked.folder / "README.md", "\n".join([heading, *(f"#{text}" for text in texts)]))
        print(f"{'all':14}{asked.folder / 'README.md'}")
    _print_next(asked, bool(asked.left()))


def _page(asked: Asked, item: str) -> Path:
    return asked.folder / f"{item}.md"


def _print_next(asked: Asked, left: bool) -> None:
    """Print the next command: this one again if runs or timings are left, else the report."""
    left = left or any(timing.is_left() for timing in asked.timings())
    words: Sequence[str] = ["rmsexp.campaign", *asked.command()] if left else ["rmsexp.report", str(asked.results)]
    print(f"next    {command(*words)}")
