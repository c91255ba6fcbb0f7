"""Write the report of one setting: its tables, texts and figures, from records alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from rmsexp.records import record
from rmsexp.records.frames import names, quantities, statistics
from rmsexp.records.frames.caveats import caveats
from rmsexp.records.frames.load import Records
from rmsexp.report import comparison, paper
from rmsexp.report.page import markdown
from rmsexp.report.page.contents import SettingReport
from rmsexp.report.plots import canvas, panels, setting_curves
from rmsexp.report.plots import p_sweep as p_plot
from rmsexp.report.plots import savings as savings_plot
from rmsexp.report.tables import findings, learning_rates, markup, seed_tests, time_to_target, versus_paper
from rmsexp.report.tables import p_sweep as p_table
from rmsexp.report.tables import quantities as quantities_table
from rmsexp.report.tables import savings as savings_table
from rmsexp.report.tables import summary as summary_table
from rmsexp.system import atomic
from rmsexp.system.readers import read_yaml

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P_TITLE = "The fraction of units p"


class WrittenReport(NamedTuple):
    """The report of a setting.

    ``drawing`` ends when its figures are written, and returns a line for each that cannot be drawn; None: nothing is
    written. ``files``: the paths of its files.
    """

    report: SettingReport
    drawing: Future[list[str]] | None
    files: list[Path]


class Part(NamedTuple):
    """A table of a report.

    Attributes:
        name: the name of its CSV file, without suffix.
        title: its heading.
        numbers: its values, for the CSV file.
        readable: its cells as text, for people.
        caption: the caption of its figure, if it has one.
    """

    name: str
    title: str
    numbers: pd.DataFrame
    readable: pd.DataFrame
    caption: tuple[str, ...] = ()


def families(settings: Mapping[Path, Records]) -> dict[Path, dict[Path, Records]]:
    """Return, for each setting, those that differ from it at most in the learning rate, including itself, by folder.

    Settings whose records cannot be compared are left out. If the setting with the learning rate of the task's config
    is in a family, it comes first. ``settings``: the records of all settings (:meth:`Records.settings`).
    """
    by_rest: dict[Path, dict[Path, Records]] = {}
    for folder in sorted(settings, key=lambda path: (len(path.name), path)):
        with suppress(ValueError):
            comparison.check(settings[folder])
            by_rest.setdefault(learning_rates.family(folder), {})[folder] = settings[folder]
    return {folder: family for family in by_rest.values() for folder in family}


def write(
    folder: Path,
    records: Records,
    family: dict[Path, Records],
    timings: pd.DataFrame,
    pool: Executor,
    to: Path,
) -> WrittenReport:
    """Write the report of one setting into the folder ``to``.

    A line for each missing config file, and for each timing record of another setting, is added to the ``problems`` of
    the setting's records. If its runs cannot be compared (see :func:`rmsexp.report.comparison.check`), the reason is
    added there, too, and the report has timings alone. Without timings, nothing is written then.

    Args:
        folder: the folder of the setting.
        records: the records of the setting.
        family: those of the settings that differ from it at most in the learning rate (:func:`families`).
        timings: all timing records (:func:`rmsexp.records.frames.timing_records.load`).
        pool: the executor that writes the figures, perhaps after this function has returned.
        to: the folder of the report, which is made if it is missing.
    """
    records.problems.extend(_missing_configs(records))
    report = SettingReport(folder.parent.name, folder.name, str(folder.parents[1]), to, records)
    comparable = _are_comparable(records)
    timings = _timings_of(folder, records, timings)
    if not comparable and timings.empty:
        return WrittenReport(report, None, [])
    to.mkdir(parents=True, exist_ok=True)
    parts = list(
        _parts(folder, records, family, timings) if comparable else _times(report.task, records.only([]), timings)
    )
    figures = _figures(report, parts)
    numbers = {part.name: part.numbers for part in parts}
    report = replace(
        report,
        tests=numbers.get("paired", report.tests),
        summary=numbers.get("summary", report.summary),
        tables={part.title: part.readable for part in parts},
        figures={part.title: str(to / f"{part.name}.png") for part in parts if part.name in figures},
        notes=_about_paper(report.task, parts),
    )
    if comparable:
        drawn = panels.setting(records, quantities.recorded(records), setting_curves.LIMITS)
        figures = {"curves": partial(setting_curves.draw_setting, drawn)} | figures
        report = replace(
            report,
            charts=drawn.charts,
            sentences=findings.figure_1(records),
            notes=[*caveats(records), *report.notes],
            figures={"Curves": str(to / "curves.png")} | report.figures,
        )
    for part in parts:
        atomic.write_atomic(to / f"{part.name}.csv", markup.csv(part.numbers))
    atomic.write_atomic(to / "report.md", markdown.setting(report, to))
    atomic.write_atomic(to / "tables.tex", markdown.latex(report))
    texts = [*(f"{part.name}.csv" for part in parts), "report.md", "tables.tex"]
    files = [to / name for name in (*texts, *(f"{figure}.png" for figure in figures))]
    return WrittenReport(report, pool.submit(_draw, figures, folder, to), files)


def _about_paper(task: str, parts: Sequence[Part]) -> list[str]:
    """Return what is noted about the paper's numbers in the tables."""
    shown = [
        part.numbers.assign(norm=part.numbers["series"].map(names.without_impl))
        for part in parts
        if part.name == "paper"
    ]
    shown += [savings_table.published(part.numbers, task) for part in parts if part.name.startswith("saving")]
    return paper.remarks(pd.concat(shown).drop_duplicates(["table", "norm", "note"])) if shown else []


def _are_comparable(records: Records) -> bool:
    """Return whether a setting has runs that can be compared; if its runs cannot be, add the reason to its problems."""
    if records.runs.empty:
        return False
    try:
        comparison.check(records)
    except ValueError as error:
        records.problems.append(str(error))
        return False
    return True


def _timings_of(folder: Path, records: Records, timings: pd.DataFrame) -> pd.DataFrame:
    """Return the timing records in the folder of a setting, and list those of other settings as problems."""
    if timings.empty:
        return timings
    timings = timings[[Path(path).is_relative_to(folder) for path in timings["folder"]]]
    task, setting = (folder.parent.name, folder.name) if records.runs.empty else records.names
    is_own = (timings["task"] == task) & (timings["setting"] == setting)
    foreign = timings.loc[~is_own, ["folder", "task", "setting"]].drop_duplicates()
    records.problems.extend(
        f"{path}: timing record ignored: it is of {other_task}, {other_setting}"
        for path, other_task, other_setting in foreign.itertuples(index=False)
    )
    return timings[is_own]


def _draw(figures: dict[str, Callable[[], Figure]], folder: Path, to: Path) -> list[str]:
    """Write the figures of a setting as PNG, which takes most of the time of a report.

    Return a line for each that cannot be drawn, with the ``folder`` of the setting.
    """
    problems = []
    for name, draw in figures.items():
        try:
            canvas.write(draw(), to / name, ["png"])
        except Exception as error:  # the other figures and settings are drawn
            problems.append(f"{folder}: the figure {to / name}.png cannot be drawn: {error!r}")
    return problems


def _missing_configs(records: Records) -> list[str]:
    """Return a line for each run without config file, and for pRMSNorm, whose p is read there, without a readable one.

    Runs that were made of the authors' logs never have one.
    """
    runs = records.runs[~records.runs["series"].str.contains("+published", regex=False)]
    lines = []
    for folder, norm in zip(runs["folder"], runs["norm"], strict=True):
        path = Path(folder, record.CONFIG)
        if not path.exists():
            lines.append(f"{path} is missing")
        elif not path.is_file():
            lines.append(f"{path} is not a regular file")
        elif norm == p_table.PARTIAL:
            try:
                read_yaml(path)
            except (OSError, ValueError) as error:
                lines.append(str(error))  # which names the file
    return lines


def _parts(folder: Path, records: Records, family: dict[Path, Records], timings: pd.DataFrame) -> Iterator[Part]:
    """Yield the tables of the setting in ``folder``, which has runs, without those for which it has no data.

    The table of learning rates covers several settings. It is yielded for the first of them only.
    """
    task, setting = records.names
    target, summary = statistics.target(records), summary_table.table(records, task, setting)
    readable = summary_table.readable(summary)
    yield Part("summary", "Summary", summary, readable[readable.columns[:-2]])  # times have their own tables
    tests = seed_tests.table(records)
    if len(tests):
        yield Part("paired", seed_tests.title(records, tests), tests, seed_tests.readable(tests))
    published = versus_paper.table(records)
    if len(published):
        yield Part("paper", "Compared with the paper", published, versus_paper.readable(published, target))
    yield from _times(task, records, timings)
    shown = quantities_table.table(records)
    yield Part("quantities", quantities_table.title(records), shown, quantities_table.readable(shown, records))
    goal = time_to_target.level(records)
    if goal:
        times = time_to_target.table(records, goal)
        yield Part("target", time_to_target.title(goal), times, time_to_target.readable(times))
    if sum(names.norm_of(series) == p_table.PARTIAL for series in set(records.runs["series"])) > 1:
        by_p = p_table.table(records, task, setting)
        if p_table.has_several(by_p):
            heading = "; ".join(filter(None, [P_TITLE, p_table.left_out(records, by_p)]))
            yield Part("p", heading, by_p, p_table.readable(by_p, records))
    if len(family) > 1 and folder == next(iter(family)):
        rates = learning_rates.table(family)
        if rates["series"].duplicated().any():  # final runs of a campaign have one rate for each norm
            yield Part("rates", "Learning rates", rates, learning_rates.readable(rates, target))


def _times(task: str, records: Records, timings: pd.DataFrame) -> Iterator[Part]:
    """Yield the tables of times of a setting, and the list of its timing records."""
    for number, savings in enumerate(savings_table.tables(records, timings), 1):
        name = "saving" if number == 1 else f"saving_{number}"
        cells = savings_table.readable(savings.numbers, task)
        yield Part(name, savings.title, savings.numbers, cells, tuple(savings.caption))
    timed = savings_table.timing_table(timings)
    if len(timed):
        yield Part("timings", savings_table.RECORDS, timed, timed)


def _figures(report: SettingReport, parts: list[Part]) -> dict[str, Callable[[], Figure]]:
    """Return functions that draw the figures of tables, by file name without suffix. ``parts``: the tables."""
    task, setting = report.task, report.setting
    figures: dict[str, Callable[[], Figure]] = {}
    for part in parts:
        if part.caption:
            title = f"{task}, {setting}: time saved per training step"
            figures[part.name] = partial(savings_plot.draw, part.numbers, task, title, list(part.caption))
        if part.name == "p":
            title = f"{task}, {setting}: the fraction of units p"
            figures["p"] = partial(p_plot.draw, part.numbers, report.records, title)
    return figures
