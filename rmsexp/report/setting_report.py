"""Write the report of one setting: its tables, texts and figures, from records alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from rmsexp.records import record
from rmsexp.records.frames import quantities
from rmsexp.records.frames.caveats import caveats
from rmsexp.records.frames.load import Records
from rmsexp.report import comparison
from rmsexp.report.page import markdown
from rmsexp.report.page.contents import SettingReport
from rmsexp.report.plots import canvas, panels, setting_curves
from rmsexp.report.plots import p_sweep as p_plot
from rmsexp.report.tables import findings, learning_rates, markup, registry
from rmsexp.report.tables import p_sweep as p_table
from rmsexp.report.tables.form import Setting, Table
from rmsexp.system import atomic
from rmsexp.system.readers import read_yaml

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class WrittenReport(NamedTuple):
    """The report of a setting.

    ``drawing`` ends when its figures are written, and returns a line for each that cannot be drawn; None: nothing is
    written. ``files``: the paths of its files.
    """

    report: SettingReport
    drawing: Future[list[str]] | None
    files: list[Path]


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
    tables = registry.tables(Setting(folder, records, family, timings), comparable=comparable)
    figures = _figures(report, tables)
    numbers = {table.name: table.numbers for table in tables}
    report = replace(
        report,
        tests=numbers.get("paired", report.tests),
        summary=numbers.get("summary", report.summary),
        tables={table.title: table.readable for table in tables},
        figures={table.title: str(to / f"{table.name}.png") for table in tables if table.name in figures},
        notes=registry.about_paper(report.task, tables),
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
    for table in tables:
        atomic.write_atomic(to / f"{table.name}.csv", markup.csv(table.numbers))
    atomic.write_atomic(to / "report.md", markdown.setting(report, to))
    atomic.write_atomic(to / "tables.tex", markdown.latex(report))
    texts = [*(f"{table.name}.csv" for table in tables), "report.md", "tables.tex"]
    files = [to / name for name in (*texts, *(f"{figure}.png" for figure in figures))]
    return WrittenReport(report, pool.submit(_draw, figures, folder, to), files)


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


def _figures(report: SettingReport, tables: Sequence[Table]) -> dict[str, Callable[[], Figure]]:
    """Return functions that draw the figures of tables, by file name without suffix."""
    title = f"{report.task}, {report.setting}: the fraction of units p"
    return {
        table.name: partial(p_plot.draw, table.numbers, report.records, title) for table in tables if table.name == "p"
    }
