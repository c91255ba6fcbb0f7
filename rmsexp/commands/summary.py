"""What a campaign and the paper's items print: the plan with costs; then verdicts, or the files that were drawn."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rmsexp.campaign import campaign_file
from rmsexp.campaign.items import Asked, Items
from rmsexp.campaign.question import Question
from rmsexp.campaign.results import Campaign, load
from rmsexp.commands.status import stage_table, terminal
from rmsexp.records import record
from rmsexp.records.frames import comparable, timing_records
from rmsexp.system import atomic
from rmsexp.system.command_line import ReportedError, brief, command
from rmsexp.work.worker import trial


def print_plan(asked: Asked) -> None:
    """Print the runs with their states, what they took and take, what else is to be known, and what to do next.

    Of several items the runs are counted, not listed. If no run of a norm has finished, a trial says what one takes.
    """
    plan, several = asked.plan(), isinstance(asked, Items) and len(asked.items) > 1
    print(asked.title)
    for name, jobs in plan.stages.items():
        for job in [] if several else jobs:
            print(f"  {name:5} {plan.states[job]:13}{job.folder}")

    terminal().print(stage_table(plan.progress(asked.results, partial(trial, asked))))
    if several:
        print(f"  {len(plan.states)} runs in all, since items share runs")
    for timing in asked.timings():
        impls = {series: job.impl for series, job in timing.jobs.items()}
        seconds = timing.options.seconds(len(comparable.grouped(impls, timing.options.reference)))
        state = f"left, about {seconds:.0f} s" if timing.is_left() else "done"
        print(f"  timing {state}: {', '.join(timing.jobs)} in {timing.folder.relative_to(asked.results)}")
    for line in plan.lines:
        print(line)
    _print_next(asked, bool(plan.left or plan.coming))


def print_verdicts(asked: Question) -> None:
    """Print the chosen rates, and the verdicts or why there are none yet."""
    campaign = asked.update()
    for norm, choice in campaign.choice.items():
        rate = "none: it diverged at every rate" if choice.rate is None else f"{choice.rate:g}"
        edge = f", the {choice.edge} of the grid" if choice.edge else ""
        print(f"rate of {norm}: {rate}{edge}")
    if campaign.undecided:
        print(f"not decided yet: {campaign.undecided}")
    for line in [*_verdicts(campaign), *campaign.problems, *campaign.all_remarks(), *_savings(asked)]:
        print(line)
    _print_next(asked, bool(campaign.left))


def print_check(folders: Sequence[Path], ours: Path) -> int:
    """Print what is checked of campaigns below folders, and their verdicts with remarks; return 1 if one is refused.

    Raises: ReportedError if there is no campaign.
    """
    from rmsexp.campaign.check import check

    paths = [path for folder in folders for path in campaign_file.find(folder)]
    if not paths:
        raise ReportedError("no campaign.json found; name a results folder, as in rmsexp.campaign check results")
    refused, consistent = False, "is consistent with its records, which does not prove that they are honest"
    for path in paths:
        try:
            campaign = load(path)
            found, lines = check(campaign, ours), _verdicts(campaign)
            lines += [f"* {remark}" for remark in campaign.all_remarks()]
        except Exception as error:  # a file of others may be strange in many ways; the other campaigns are checked
            print(f"{path} is refused: {error!r}")
            refused = True
            continue
        print(brief(f"{campaign.name}: {campaign.question}"))
        for what, reasons in found.items():
            print("\n".join(f"  {what:12}{brief(reason)}" for reason in reasons or ["ok"]))
        if "baseline" not in found:
            print(f"  baseline    not checked: {ours} has no decided campaign of the same runs with rms")
        is_refused = any(found.values())
        print(*map(brief, lines), f"{campaign.name} {'is refused' if is_refused else consistent}", sep="\n")
        refused = refused or is_refused
    return int(refused)


def _verdicts(campaign: Campaign) -> list[str]:
    """Return a line for each verdict; none if the campaign is undecided."""
    from rmsexp.report.tables import verdicts

    return [] if campaign.undecided else [verdicts.line(row) for row in verdicts.table([campaign]).to_dict("records")]


def _savings(asked: Question) -> list[str]:
    """Return a line with the time that the newest timing found for each norm; none without a timing."""
    lines = []
    for timing in asked.timings():
        records = timing_records.load(timing.folder)
        records = records[(records["kind"] == "steps") & records["series"].isin(list(timing.jobs))]
        if len(newest := records[records["started"] == records["started"].max()]):
            lines.append(f"time of a step: {timing_records.estimates(newest)}")
    return lines


def draw(asked: Items) -> None:
    """Draw the items from what the records have, and print the paths, what is missing, and the next command."""
    from rmsexp.analysis import item_drawing

    plan = asked.plan()
    for item in asked.items:
        item_drawing.write(asked, item)
        missing = sum(plan.states[run] not in record.ENDED for run in plan.stages.get(item.name, ()))
        print(f"{item.title:14}{asked.page(item.name)}" + (f" ({missing} runs missing)" if missing else ""))
    if len(asked.items) > 1:
        texts = [asked.page(item.name).read_text(encoding="utf-8") for item in asked.items]
        heading = f"# Tables and figures of the paper, scale={asked.scale}\n"
        atomic.write_atomic(asked.folder / "README.md", "\n".join([heading, *(f"#{text}" for text in texts)]))
        print(f"{'all':14}{asked.folder / 'README.md'}")
    _print_next(asked, bool(plan.left))


def _print_next(asked: Asked, left: bool) -> None:
    """Print the next command: this one again if runs or timings are left, else the report."""
    left = left or any(timing.is_left() for timing in asked.timings())
    words: Sequence[str] = ["rmsexp.campaign", *asked.command()] if left else ["rmsexp.report", str(asked.results)]
    print(f"next    {command(*words)}")
