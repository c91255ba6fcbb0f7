"""The report of one setting: every figure and table, from records alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from rmsexp import record
from rmsexp.compare import comparison
from rmsexp.compare.page import contents, markdown
from rmsexp.compare.plots import canvas
from rmsexp.compare.plots import p_sweep as p_plot
from rmsexp.compare.plots import savings as savings_plot
from rmsexp.compare.records import statistics
from rmsexp.compare.records.caveats import caveats
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables import findings, learning_rates, seed_tests, time_to_target, versus_paper
from rmsexp.compare.tables import p_sweep as p_table
from rmsexp.compare.tables import savings as savings_table
from rmsexp.compare.tables import summary as summary_table

DRAWN = {"curves": "Curves", "saving": "Time saved against LayerNorm", "p": "The share of units p"}


class Written(NamedTuple):
    """A setting's report, and the drawing of its figures, which may still go on; none where nothing can be drawn."""

    report: contents.SettingReport
    drawing: Future[None] | None


class Part(NamedTuple):
    """One table: the name of its file, its title, its numbers and how people read them."""

    name: str
    title: str
    numbers: pd.DataFrame
    shown: pd.DataFrame


def write(folder: Path, settings: dict[Path, Records], timings: pd.DataFrame, pool: Executor) -> Written:
    """Writes everything of one setting into ``<folder>/comparison``, where it can be compared at all.

    ``settings``: all records by their settings' folders (:meth:`Records.settings`), among them this one's.
    ``timings``: :func:`rmsexp.compare.timing.load` of all. ``pool`` draws the figures.
    """
    records = settings[folder]
    records.problems.extend(_missing_configs(records))
    one = contents.SettingReport(folder.parent.name, folder.name, str(folder.parents[1]), records)
    try:
        comparison.check(records, folder)
    except ValueError as error:
        records.problems.append(str(error))
        return Written(one, None)
    one.folder.mkdir(exist_ok=True)
    own = timings[[Path(path).is_relative_to(folder) for path in timings["folder"]]] if len(timings) else timings
    parts = list(_parts(folder, settings, own))
    numbers = {part.name: part.numbers for part in parts}
    names = ["curves", *_figures(records, numbers)]
    one = replace(
        one,
        summary=numbers["summary"],
        tables={part.title: part.shown for part in parts},
        sentences=findings.figure_1(records),
        notes=caveats(records),
        figures={DRAWN[name]: str(one.folder / f"{name}.png") for name in names},
    )
    for part in parts:
        record.write_atomic(one.folder / f"{part.name}.csv", part.numbers.to_csv(index=False))
    record.write_atomic(one.folder / "report.md", markdown.markdown(one, one.folder))
    record.write_atomic(one.folder / "tables.tex", markdown.latex(one))
    return Written(one, pool.submit(_draw, records, numbers, folder))


def _draw(records: Records, numbers: dict[str, pd.DataFrame], folder: Path) -> None:
    """All figures of a setting: what takes longest, and needs nothing else."""
    drawn = comparison.draw(records, folder, numbers["summary"])
    for name, draw in _figures(records, numbers).items():
        canvas.write(draw(), drawn / name)


def _missing_configs(records: Records) -> list[str]:
    """Records of published logs have none."""
    ours = records.runs[~records.runs["series"].str.contains("+published", regex=False)]
    paths = [Path(folder, record.CONFIG) for folder in ours["folder"]]
    return [f"{path} is missing" for path in paths if not path.exists()]


def _parts(folder: Path, settings: dict[Path, Records], timings: pd.DataFrame) -> Iterator[Part]:
    """The tables that the setting has something for."""
    records = settings[folder]
    task, setting = records.names
    aim, summary = statistics.target(records), summary_table.table(records, task, setting)
    shown = summary_table.readable(summary)
    yield Part("summary", "Summary", summary, shown[shown.columns[:-1]])  # savings have a table of their own
    against = seed_tests.table(records)
    if len(against):
        yield Part("paired", "Against LayerNorm, seed by seed", against, seed_tests.readable(against))
    theirs = versus_paper.table(records)
    if len(theirs):
        yield Part("paper", "Beside the paper", theirs, versus_paper.readable(theirs, aim))
    saved = savings_table.table(records, timings)
    yield Part("saving", "Time, and saving against LayerNorm", saved, savings_table.readable(saved, task))
    goal = time_to_target.level(records)
    if goal:
        reached = time_to_target.table(records, goal)
        yield Part("target", time_to_target.title(goal), reached, time_to_target.readable(reached))
    by_p = p_table.table(records, task, setting)
    if by_p["p"].nunique() > 1 and by_p["series"].nunique() > 2:
        yield Part("p", "The share of units p", by_p, p_table.readable(by_p, aim))
    tried = _family(folder, settings)
    if len(tried) > 1 and folder == next(iter(tried)):
        table = learning_rates.table(tried)
        yield Part("rates", "Learning rates", table, learning_rates.readable(table, aim))


def _family(folder: Path, settings: dict[Path, Records]) -> dict[Path, Records]:
    """The settings that differ from this one in their learning rate alone, and can be compared; the recipe's first."""
    found = {}
    for one in sorted(settings, key=lambda path: (len(path.name), path)):
        if learning_rates.family(one) == learning_rates.family(folder):
            with suppress(ValueError):
                comparison.check(settings[one], one)
                found[one] = settings[one]
    return found


def _figures(records: Records, numbers: dict[str, pd.DataFrame]) -> dict[str, Callable[[], Figure]]:
    """Those beside the curves, by name, drawn when called; ``numbers``: of the tables by name."""
    task, setting = records.names
    found: dict[str, Callable[[], Figure]] = {}
    if numbers["saving"]["kind"].isin(["paired", "unpaired"]).any():
        title = f"{task}, {setting}: time saved against LayerNorm"
        found["saving"] = partial(savings_plot.draw, numbers["saving"], task, title, caveats(records)[:2])
    if "p" in numbers:
        title = f"{task}, {setting}: the share of units p"
        found["p"] = partial(p_plot.draw, numbers["p"], statistics.target(records), title)
    return found
