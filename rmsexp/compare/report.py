"""The report of one setting: every figure and table, from records alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pandas as pd
from matplotlib.figure import Figure

from rmsexp import compare, record
from rmsexp.compare import ablation, beside, claims, figures, paired, rates, savings, stats, tables, targets
from rmsexp.compare.load import Records
from rmsexp.compare.notes import notes

DRAWN = {"curves": "Curves", "saving": "Time saved against LayerNorm", "p": "The share of units p"}


@dataclass(frozen=True)
class SettingReport:
    """What is said of one setting below one root.

    Attributes:
        task, setting: as its folders are named.
        root: the folder that holds the task's folder; two machines' results are two roots.
        records: the setting's records alone; what is wrong with them stands in ``records.problems``.
        tables: readable tables (all cells are text) by title; their first column is the norm.
        sentences: findings in words, computed.
        notes: what must be said beside every figure: data, machine, reasons for caution.
        figures: PNG files that were drawn, by title.
        summary: the numbers of the first table (:func:`rmsexp.compare.tables.summary`).
    """

    task: str
    setting: str
    root: str
    records: Records
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)
    summary: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def folder(self) -> Path:
        """Of the figures and tables of this setting."""
        return Path(self.root, self.task, self.setting, "comparison")


class Written(NamedTuple):
    """A setting's report, and the drawing of its figures, which may still go on; none where nothing can be drawn."""

    report: SettingReport
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
    one = SettingReport(folder.parent.name, folder.name, str(folder.parents[1]), records)
    try:
        compare.check(records, folder)
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
        sentences=claims.figure_1(records),
        notes=notes(records),
        figures={DRAWN[name]: str(one.folder / f"{name}.png") for name in names},
    )
    for part in parts:
        record.write_atomic(one.folder / f"{part.name}.csv", part.numbers.to_csv(index=False))
    record.write_atomic(one.folder / "report.md", markdown(one, one.folder))
    record.write_atomic(one.folder / "tables.tex", latex(one))
    return Written(one, pool.submit(_draw, records, numbers, folder))


def _draw(records: Records, numbers: dict[str, pd.DataFrame], folder: Path) -> None:
    """All figures of a setting: what takes longest, and needs nothing else."""
    comparison = compare.draw_records(records, folder, numbers["summary"])
    for name, draw in _figures(records, numbers).items():
        figures.write(draw(), comparison / name)


def _missing_configs(records: Records) -> list[str]:
    """Records of published logs have none."""
    ours = records.runs[~records.runs["series"].str.contains("+published", regex=False)]
    paths = [Path(folder, record.CONFIG) for folder in ours["folder"]]
    return [f"{path} is missing" for path in paths if not path.exists()]


def _parts(folder: Path, settings: dict[Path, Records], timings: pd.DataFrame) -> Iterator[Part]:
    """The tables that the setting has something for."""
    records = settings[folder]
    task, setting = records.names
    aim, summary = stats.target(records), tables.summary(records, task, setting)
    shown = tables.readable(summary)
    yield Part("summary", "Summary", summary, shown[shown.columns[:-1]])  # savings have a table of their own
    against = paired.table(records)
    if len(against):
        yield Part("paired", "Against LayerNorm, seed by seed", against, paired.readable(against))
    theirs = beside.quality(records)
    if len(theirs):
        yield Part("paper", "Beside the paper", theirs, beside.readable_quality(theirs, aim))
    saved = savings.table(records, timings)
    yield Part("saving", "Time, and saving against LayerNorm", saved, savings.readable(saved, task))
    goal = targets.level(records)
    if goal:
        reached = targets.table(records, goal)
        yield Part("target", targets.title(goal), reached, targets.readable(reached))
    by_p = ablation.p_table(records, task, setting)
    if by_p["p"].nunique() > 1 and by_p["series"].nunique() > 2:
        yield Part("p", "The share of units p", by_p, ablation.readable(by_p, aim))
    tried = _family(folder, settings)
    if len(tried) > 1 and folder == next(iter(tried)):
        table = rates.table(tried)
        yield Part("rates", "Learning rates", table, rates.readable(table, aim))


def _family(folder: Path, settings: dict[Path, Records]) -> dict[Path, Records]:
    """The settings that differ from this one in their learning rate alone, and can be compared; the recipe's first."""
    found = {}
    for one in sorted(settings, key=lambda path: (len(path.name), path)):
        if rates.family(one) == rates.family(folder):
            with suppress(ValueError):
                compare.check(settings[one], one)
                found[one] = settings[one]
    return found


def _figures(records: Records, numbers: dict[str, pd.DataFrame]) -> dict[str, Callable[[], Figure]]:
    """Those beside the curves, by name, drawn when called; ``numbers``: of the tables by name."""
    task, setting = records.names
    found: dict[str, Callable[[], Figure]] = {}
    if numbers["saving"]["kind"].isin(["paired", "unpaired"]).any():
        title = f"{task}, {setting}: time saved against LayerNorm"
        found["saving"] = partial(savings.draw, numbers["saving"], task, title, notes(records)[:2])
    if "p" in numbers:
        title = f"{task}, {setting}: the share of units p"
        found["p"] = partial(ablation.draw_p, numbers["p"], stats.target(records), title)
    return found


def markdown(one: SettingReport, folder: Path, level: int = 1) -> str:
    """The report in words; ``folder``: where the text will lie, from which figures are linked."""
    heading = "#" * level
    parts = [f"{heading} {one.task}, {one.setting} ({one.root})", *one.sentences]
    parts += [f"![{title}]({_link(Path(path), folder)})" for title, path in one.figures.items()]
    for title, table in one.tables.items():
        parts += [f"{heading}# {title}", tables.markdown(table)]
    parts.append("\n".join(f"- {line}" for line in [*one.notes, *one.records.problems]))
    return "\n\n".join(parts) + "\n"


def _link(path: Path, folder: Path) -> str:
    """As Markdown takes it; the names of settings may hold what has a meaning in a link."""
    return quote(Path(os.path.relpath(path, folder)).as_posix())


def latex(one: SettingReport) -> str:
    """Every table, its caption naming the setting."""
    found = [tables.latex(table, f"{one.task}, {one.setting}: {title}") for title, table in one.tables.items()]
    return "\n".join(found)
