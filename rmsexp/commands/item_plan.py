"""What the commands of the paper's items print: their runs and timings with states and costs, and the files drawn.

A run that is not done takes as long as the mean of the finished runs of its norm in its setting, else of its setting,
on machines like this one. If there are none, a trial of 20 steps and an evaluation says how long it takes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

from rmsexp import config
from rmsexp.analysis import item_drawing
from rmsexp.campaign.item_file import Item
from rmsexp.campaign.items import Items, Run
from rmsexp.config import score
from rmsexp.records import record
from rmsexp.system import atomic
from rmsexp.system.command_line import ReportedError, command, duration, inform
from rmsexp.work import cost

TRIAL_WORDS = [f"{key}={cost.TRIAL_STEPS}" for key in ("max_steps", "log_every", "eval_every", "checkpoint_every")]


def print_plan(asked: Items) -> None:
    """Print the runs and timings of one item, or the items with the numbers of their runs; then the cost of all."""
    if len(asked.items) == 1:
        (item,) = asked.items
        print(f"{item.content.title}: {item.content.caption}")
        for run in asked.runs(asked.items):
            print(f"  {asked.state(run):13}{run.folder}")
        for timing in asked.timings(asked.items):
            place = timing.folder.relative_to(asked.results)
            print(f"  {'missing' if timing.is_left() else 'finished':13}timing of {', '.join(timing.jobs)} in {place}")
    seconds = estimates(asked, inform)
    if len(asked.items) > 1:
        print(f"  {'item':13}{'runs done':>10}{'left':>6}{'time left':>11}  {'timing':10}drawn")
        for item in asked.items:
            print(f"  {_line(asked, item, seconds)}")
    left, timings = asked.left(), [each for each in asked.timings(asked.items) if each.is_left()]
    total = f"{len(asked.runs(asked.items)) - len(left)} runs done, {len(left)} left"
    print(f"{total}: {_duration(seconds[run] for run in left)}, one after the other, each alone on its cores")
    if timings:
        print(f"{len(timings)} timings left: {_duration(each.budget for each in timings)}")
    print(f"next    {_next(asked, bool(left or timings))}")


def _line(asked: Items, item: Item, seconds: dict[Run, float]) -> str:
    """Return the state of an item in one line."""
    runs, timings = asked.runs([item]), asked.timings([item])
    left = [run for run in runs if run in seconds]
    timing = "left" if any(each.is_left() for each in timings) else "done" if timings else ""
    drawn = "yes" if (asked.folder / f"{item.name}.md").exists() else "no"
    time = _duration(seconds[run] for run in left) if left else ""
    return f"{item.name:13}{len(runs) - len(left):>10}{len(left):>6}{time:>11}  {timing:10}{drawn}"


def _duration(seconds: Iterable[float]) -> str:
    total = sum(seconds)
    return "unknown" if math.isnan(total) else duration(total)


def estimates(asked: Items, report: Callable[[str], None]) -> dict[Run, float]:
    """Return the estimated seconds of each run that is left; NaN if a trial fails.

    ``report`` gets a line before each trial, and one with the reason if it fails.
    """
    done: dict[str, list[float]] = {}  # by folder of the series, and of the setting
    for run in asked.runs(asked.items):
        if asked.state(run) == "finished" and cost.is_from_this_machine(asked.results / run.folder):
            spent = cost.cost(asked.results / run.folder).seconds
            for place in _places(run):
                done.setdefault(place, []).append(spent)
    found = {}
    for run in asked.left():
        series, setting = _places(run)
        if series not in done and setting not in done:
            report(f"trying {cost.TRIAL_STEPS} steps of {series}, to estimate the cost")
            seconds = _trial(asked, run, report)
            done[series if seconds == 0 else setting] = [seconds]  # that one norm diverges tells nothing about others
        found[run] = statistics.fmean(done[series if series in done else setting])
    return found


def _places(run: Run) -> tuple[str, str]:
    """Return the folders of a run's series and of its setting."""
    path = PurePosixPath(run.folder)
    return str(path.parents[0]), str(path.parents[1])


def _trial(asked: Items, run: Run, report: Callable[[str], None]) -> float:
    """Return the seconds of a whole run, from a trial; NaN after a line that says why the trial failed.

    Raises: SystemExit if a signal stops it.
    """
    cfg = asked.job(run).config
    own = TRIAL_WORDS if cfg.evaluation is None else cost.trial_words(cfg.schedule)

    def job(words: Sequence[str]) -> config.Job:
        return config.job([*cost.unlogged(run.words), *own, *words], asked.config_dir)

    try:
        with cost.tried(asked.folder, _places(run)[0], job) as files:
            if cfg.evaluation is None:
                return _extrapolated(files, cfg.max_steps, cfg.eval_every)
            found = cost.extrapolated(files, cfg.max_steps)
            return found.seconds + score.SCORED * found.evaluation  # a test split as large as the validation split
    except ReportedError as error:
        report(str(error))
        return math.nan


def _extrapolated(files: record.RunFolder, steps: int, eval_every: int) -> float:
    """Return the seconds of a run from the record of a trial, which began and ended with an evaluation."""
    rows = files.read_metrics()[0] if files.metrics_path.exists() else []
    if not rows or rows[-1]["step"] < cost.TRIAL_STEPS:  # it diverged
        return 0.0
    clock = rows[-1]["seconds"]
    training = (clock["data"] + clock["train"]) * steps / cost.TRIAL_STEPS
    evaluations = 1 + math.ceil(steps / eval_every)  # the first is before training
    return float(clock["warmup"] + training + evaluations * clock["eval"] / 2) / (1 + cost.waited(files))


def conclude(asked: Items) -> None:
    """Draw the items from what the records have, and print the paths, what is missing, and the next command."""
    paths = [item_drawing.write(asked, item) for item in asked.items]
    for item, path in zip(asked.items, paths, strict=True):
        missing = sum(not asked.has_ended(run) for run in asked.runs([item]))
        print(f"{item.content.title:14}{path}" + (f" ({missing} runs missing)" if missing else ""))
    if len(paths) > 1:
        print(f"{'all':14}{_page(asked, paths)}")
    left = bool(asked.left()) or any(timing.is_left() for timing in asked.timings(asked.items))
    print(f"next    {_next(asked, left)}")


def _page(asked: Items, paths: Sequence[Path]) -> Path:
    """Write a page with the pages of all items, and return it."""
    page = asked.folder / "README.md"
    heading = f"# Tables and figures of the paper, scale={asked.scale}"
    atomic.write_atomic(page, "\n".join([f"{heading}\n", *(f"#{path.read_text(encoding='utf-8')}" for path in paths)]))
    return page


def _next(asked: Items, left: bool) -> str:
    """Return the next command: this one again if something is left, else the report."""
    words = ["rmsexp.campaign", *asked.command()] if left else ["rmsexp.report", str(asked.results)]
    return command(*words)
