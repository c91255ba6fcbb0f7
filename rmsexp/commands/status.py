"""``python -m rmsexp.status [RESULTS]``: the state of campaigns and runs below a folder, from records alone.

Prints each run that has not finished, with its step, last evaluation and time left, or with the message of its failure;
records that are damaged; each campaign with its stages, time left and next command; and the number of finished runs of
each setting. Times left are estimated from the times in the records.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rmsexp.campaign import progress
from rmsexp.campaign.progress import CampaignState, Overview, Stage
from rmsexp.config.schema import results_folder
from rmsexp.records import record
from rmsexp.records.states import STATES
from rmsexp.system.command_line import Parser, brief, duration, entry_point

REFRESH_SECONDS = 2.0
WIDEST = 10_000  # characters of a line
STYLES = {"running": "green", "failed": "red", "unknown": "red", "diverged": "magenta", "interrupted": "yellow"}


@entry_point
def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m rmsexp.status", description=__doc__)
    parser.add_argument(
        "results", type=Path, nargs="?", default=Path("results"), help="root folder of all records; default: results"
    )
    parser.add_argument("--watch", action="store_true", help="show this until Ctrl-C, again every 2 seconds")
    arguments = parser.parse_args(argv)
    results, console = results_folder(arguments.results), terminal()
    if not arguments.watch:
        console.print(_shown(results))
        return 0
    if not console.is_terminal:
        parser.error("--watch needs a terminal; leave it out")
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(_shown(results), refresh=True)
            threading.Event().wait(REFRESH_SECONDS)


def terminal() -> Console:
    """Return a console for standard output. If that is no terminal, lines are not wrapped up to ``WIDEST``."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDEST)


def _shown(results: Path) -> Group:
    return Group(*_blocks(progress.read(results)))


def _blocks(overview: Overview) -> Iterator[RenderableType]:
    """Yield the paragraphs and tables that show an overview, what needs attention first.

    A terminal that is watched shows only as many lines as fit, from the first on.
    """
    counts = Counter(run.state for run in overview.runs)
    states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    damaged = f"; damaged records: {len(overview.problems)}" if overview.problems else ""
    runs = f"{len(overview.runs)} run{'s' * (len(overview.runs) != 1)}"
    yield _text(f"{overview.results}: {runs}{': ' * bool(states)}{states}{damaged}")
    if line := record.left_out(overview.results, "rmsexp.status"):
        yield _text(line)
    for state in ("running", "failed"):
        yield from _unfinished(overview, state)
    if overview.problems:
        yield _text("\ndamaged records", "bold red")
        yield from map(_text, overview.problems)
    for campaign in overview.campaigns:
        yield from _campaign(campaign)
    for state in STATES[2:-1]:
        yield from _unfinished(overview, state)
    settings: dict[str, Counter[str]] = defaultdict(Counter)
    for run in overview.runs:
        if run.state == "finished":
            settings[_below(overview.results, run.setting)][run.series] += 1
    if settings:
        yield _text("\nfinished", "bold")
        table = _table("setting", "runs", "by norm")
        for setting, series in settings.items():
            by_norm = ", ".join(f"{name} {count}" for name, count in sorted(series.items()))
            table.add_row(*map(_text, [setting, str(series.total()), by_norm]))
        yield table


def _campaign(campaign: CampaignState) -> Iterator[RenderableType]:
    yield _text(f"\ncampaign {campaign.name}", "bold")
    yield _text(campaign.question)
    yield stage_table(campaign.stages)
    left = progress.total(stage.seconds_left for stage in campaign.stages)
    if left != 0:
        yield _text(f"time left  {_duration(left)}, one run after the other")
    yield Text(f"next       {brief(campaign.next)}", overflow="fold")


def stage_table(stages: Sequence[Stage]) -> Table:
    """Return a table of the stages of a campaign, or of items: runs by state, what they took, and what is left."""
    shown = list(dict.fromkeys(state for stage in stages for state in stage.states))
    table = _table("stage", *shown, "coming", "took", "time left")
    for stage in stages:
        numbers = [str(number) for number in (*(stage.states[state] for state in shown), stage.coming)]
        times = _duration(stage.seconds), _duration(stage.seconds_left)
        table.add_row(*map(_text, [stage.name, *numbers, *times]))
    return table


def _unfinished(overview: Overview, state: str) -> Iterator[RenderableType]:
    """Yield a heading and a table of the runs in a state, nothing if there are none."""
    runs = [run for run in overview.runs if run.state == state]
    if not runs:
        return
    yield _text(f"\n{state}", f"bold {STYLES[state]}")
    evaluated = any(run.evaluation for run in runs)
    last = "time left" if state == "running" else "message"
    table = _table("run", "step", *["last evaluation"] * evaluated, last)
    for run in runs:
        steps = f"{run.step}/{run.steps}" if run.steps is not None else str(run.step)
        reason = _duration(run.seconds_left) if state == "running" else (run.error or "").partition("\n")[0]
        evaluation = [run.evaluation] * evaluated
        table.add_row(*map(_text, [_below(overview.results, run.folder), steps, *evaluation, reason]))
    yield table


def _below(results: Path, folder: Path) -> str:
    """Return the path of a folder below the results; its whole path if it is not below them."""
    return str(folder.absolute()).removeprefix(f"{results.absolute()}/")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _text(text: str, style: str = "") -> Text:
    """Return a text in which characters that cannot be printed are escaped."""
    indent = "\n" * text.startswith("\n")
    return Text(indent + brief(text), style, overflow="fold") if text else Text()


def _duration(seconds: float | None) -> str:
    return "unknown" if seconds is None else duration(seconds)
