"""Write the report of one setting: its tables, texts and figures, from records alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pandas as pd

from rmsexp.records import record
from rmsexp.records.frames import names, quantities
from rmsexp.records.frames.caveats import caveats
from rmsexp.records.frames.load import Records
from rmsexp.report import comparison, paper
from rmsexp.report.page import markdown
from rmsexp.report.page.contents import SettingReport
from rmsexp.report.plots import canvas, setting_curves
from rmsexp.report.plots import p_sweep as p_plot
from rmsexp.report.plots.chart import Chart
from rmsexp.report.tables import findings, learning_rates, markup, savings, seed_tests, time_to_target, versus_paper
from rmsexp.report.tables import p_sweep as p_table
from rmsexp.report.tables import quantities as quantities_table
from rmsexp.report.tables import summary as summary_table
from rmsexp.report.tables.form import Setting, Table
from rmsexp.system import atomic

# Each yields the tables for which a setting has data. Those of times need no runs that can be compared.
TABLES: tuple[Callable[[Setting], Iterator[Table]], ...] = (
    summary_table.tables,
    seed_tests.tables,
    versus_paper.tables,
    savings.tables,
    quantities_table.tables,
    time_to_target.tables,
    p_table.tables,
    learning_rates.tables,
)


def families(settings: Mapping[Path, Records]) -> dict[Path, dict[Path, Records]]:
    """Return, for each setting, those that differ from it at most in the learning rate, including itself, by folder.

    Settings whose runs cannot be compared (see :func:`rmsexp.report.comparison.check`) are left out, and the reason is
    added to the ``problems`` of their records. If the setting with the learning rate of the task's config is in a
    family, it comes first. ``settings``: the records of all settings (:meth:`Records.settings`).
    """
    by_rest: dict[Path, dict[Path, Records]] = {}
    for folder in sorted(settings, key=lambda path: (len(path.name), path)):
        try:
            if len(settings[folder].runs):
                comparison.check(settings[folder])
                by_rest.setdefault(learning_rates.family(folder), {})[folder] = settings[folder]
        except ValueError as error:
            settings[folder].problems.append(str(error))
    return {folder: family for family in by_rest.values() for folder in family}


def write(
    folder: Path,
    records: Records,
    family: dict[Path, Records],
    timings: pd.DataFrame,
    to: Path,
) -> SettingReport:
    """Write the report of one setting into the folder ``to``.

    Return it. The ``problems`` of the setting's records get a line for each missing config file, timing record of
    another setting, and figure that cannot be drawn. If its runs cannot be compared, it has no family, and the report
    has timings alone. Without timings, nothing is written then.

    Args:
        folder: the folder of the setting.
        records: the records of the setting.
        family: those of the settings that differ from it at most in the learning rate (:func:`families`).
        timings: all timing records (:func:`rmsexp.records.frames.timing_records.load`).
        to: the folder of the report, which is made if it is missing.
    """
    task, setting = folder.parent.name, folder.name
    trained = records.runs[~records.runs["series"].str.contains("+published", regex=False)]
    configs = [Path(run, record.CONFIG) for run in trained["folder"]]
    records.problems.extend(f"{path} is missing" for path in configs if not path.is_file())
    comparable = bool(family)
    timings = timings[timings["folder"].map(lambda path: Path(path).is_relative_to(folder)).astype(bool)]
    own = (task, setting) if records.runs.empty else records.names
    for path, *of in timings[["folder", "task", "setting"]].drop_duplicates().itertuples(index=False):
        if tuple(of) != own:
            records.problems.append(f"{path}: timing record ignored: it is of {', '.join(of)}")
    timings = timings[(timings["task"] == own[0]) & (timings["setting"] == own[1])]
    if not comparable and timings.empty:
        return SettingReport(task, setting, str(folder.parents[1]), to, records)
    to.mkdir(parents=True, exist_ok=True)
    data = Setting(folder, records, family, timings)
    tables = [table for make in (TABLES if comparable else (savings.tables,)) for table in make(data)]
    numbers, charts = {table.name: table.numbers for table in tables}, dict[str, Chart]()
    if comparable:
        charts["curves"] = setting_curves.chart(records, quantities.recorded(records))
    if "p" in numbers:
        charts["p"] = p_plot.chart(numbers["p"], records, f"{task}, {setting}: the fraction of units p")
    titles = {"curves": "Curves"} | {table.name: table.title for table in tables}
    report = SettingReport(
        task,
        setting,
        str(folder.parents[1]),
        to,
        records,
        tables={table.title: table.readable for table in tables},
        sentences=findings.figure_1(records) if comparable else [],
        notes=[*(caveats(records) if comparable else []), *_about_paper(task, tables)],
        figures={titles[name]: str(to / f"{name}.png") for name in charts},
        curves=charts.get("curves"),
        tests=numbers.get("paired", pd.DataFrame()),
        summary=numbers.get("summary", pd.DataFrame()),
    )
    texts = {f"{table.name}.csv": markup.csv(table.numbers) for table in tables}
    texts |= {"report.md": markdown.setting(report, to), "tables.tex": markdown.latex(report.captioned)}
    for name, text in texts.items():
        atomic.write_atomic(to / name, text)
    records.problems.extend(_draw(charts, folder, to))
    return report


def _about_paper(task: str, tables: Iterable[Table]) -> list[str]:
    """Return what is noted about the paper's numbers in the tables of a setting."""
    shown = [paper.numbers().iloc[:0]]
    for table in tables:
        if table.name == "paper":
            shown.append(table.numbers.assign(norm=table.numbers["series"].map(names.without_impl)))
        elif table.name.startswith("saving"):
            shown.append(savings.published(table.numbers, task))
    return paper.remarks(pd.concat(shown).drop_duplicates(["table", "norm", "note"]))


def _draw(charts: Mapping[str, Chart], folder: Path, to: Path) -> list[str]:
    """Write the figures of a setting as PNG.

    Return a line for each that cannot be drawn, with the ``folder`` of the setting.
    """
    problems = []
    for name, chart in charts.items():
        try:
            canvas.write(canvas.draw(chart), to / name, ["png"])
        except Exception as error:  # the other figures and settings are drawn
            problems.append(f"{folder}: the figure {to / name}.png cannot be drawn: {error!r}")
    return problems
