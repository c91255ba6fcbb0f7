"""The report of one setting: its tables, texts and figures, from records alone."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from rmsexp.records import record
from rmsexp.records.frames import names, quantities, statistics
from rmsexp.records.frames.caveats import caveats
from rmsexp.records.frames.load import Records
from rmsexp.report import paper
from rmsexp.report.plots import canvas, setting_curves
from rmsexp.report.plots.chart import Chart
from rmsexp.report.tables import markup, savings, seed_tests, summary, time_to_target, versus_paper
from rmsexp.report.tables.markup import Table
from rmsexp.system import atomic


class NoMetricsError(ValueError):
    """No run of a setting has any metrics yet."""


@dataclass(frozen=True)
class SettingReport:
    """The contents of the report of one setting.

    Attributes:
        path: the folder with the runs of the setting, ``<root>/<task>/<setting>``; each machine may have its own root.
        folder: the folder to which the setting's figures and tables are written.
        records: those of this setting; their ``problems`` list what could not be read or compared.
        sentences: those of :func:`rmsexp.report.tables.versus_paper.figure_1`.
        curves: the figure ``curves.png``; None if no runs can be compared.
    """

    path: Path
    folder: Path
    records: Records
    tables: list[Table] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    curves: Chart | None = None

    @property
    def task(self) -> str:
        """The name of the folder of the task."""
        return self.path.parent.name

    @property
    def setting(self) -> str:
        """The name of the folder of the setting."""
        return self.path.name

    @property
    def root(self) -> str:
        """The folder that contains the task's folder."""
        return str(self.path.parents[1])

    def numbers(self, name: str) -> pd.DataFrame:
        """Return the numbers of a table; an empty frame if the report has no such table."""
        return next((table.numbers for table in self.tables if table.name == name), pd.DataFrame())

    def markdown(self, to: Path, level: int = 1) -> str:
        """Return the report as Markdown, with links relative to the folder ``to``.

        The title is a heading of ``level``; the headings of tables are one level deeper.
        """
        heading = "#" * level
        parts = [f"{heading} {self.task}, {self.setting} ({self.root})", *self.sentences]
        if self.curves is not None:
            parts.append(f"![Curves]({quote(os.path.relpath(self.folder / 'curves', to))}.png)")
        for table in self.tables:
            parts += [f"{heading}# {table.title}", markup.markdown(table.readable)]
        return markup.document([*parts, markup.listed([*self.notes, *self.records.problems])])


def check(records: Records) -> None:
    """Raise NoMetricsError if no run of a setting has metrics, and ValueError if none names a target metric."""
    if records.metrics.empty:
        raise NoMetricsError(f"{statistics.folder(records)}: no run has any metrics yet, so there is nothing to draw")
    statistics.target(records)


def write(folder: Path, records: Records, timings: pd.DataFrame, to: Path) -> SettingReport:
    """Write the report of the setting in ``folder`` into the folder ``to``, and return it.

    Appends a line to ``records.problems`` for each config file that is missing, and each timing record that is of
    another setting. If no run has metrics, or none a target, this is a problem, too, and the report has timings alone;
    without timings nothing is written then.
    """
    task, setting = folder.parent.name, folder.name
    trained = records.runs[~records.runs["series"].str.contains("+published", regex=False)]
    configs = [Path(run, record.CONFIG) for run in trained["folder"]]
    records.problems.extend(f"{path} is missing" for path in configs if not path.is_file())
    own = (task, setting) if records.runs.empty else records.names
    for path, *of in timings[["folder", "task", "setting"]].drop_duplicates().itertuples(index=False):
        if tuple(of) != own:
            records.problems.append(f"{path}: timing record ignored: it is of {', '.join(of)}")
    timings = timings[(timings["task"] == own[0]) & (timings["setting"] == own[1])]
    comparable = not records.runs.empty
    if comparable:
        try:
            check(records)
        except ValueError as error:
            records.problems.append(str(error))
            comparable = False
    if not comparable and timings.empty:
        return SettingReport(folder, to, records)
    to.mkdir(parents=True, exist_ok=True)
    tables = list(_tables(records if comparable else None, timings))
    sentences, notes, curves = list[str](), list[str](), None
    if comparable:
        sentences, notes = versus_paper.figure_1(records), caveats(records)
        curves = setting_curves.chart(records, quantities.recorded(records))
    for table in tables:
        if table.name == "paper":
            notes += paper.remarks(table.numbers.assign(norm=table.numbers["series"].map(names.without_impl)))
    report = SettingReport(folder, to, records, tables, sentences, notes, curves)
    for table in tables:
        atomic.write_atomic(to / f"{table.name}.csv", markup.csv(table.numbers))
    atomic.write_atomic(to / "report.md", report.markdown(to))
    if curves is not None:
        canvas.save(curves, to / "curves", ["png"])
    return report


def _tables(records: Records | None, timings: pd.DataFrame) -> Iterator[Table]:
    """Yield the tables for which a setting has data. ``records``: None if its runs cannot be compared."""
    if records is None:
        yield from savings.tables(timings)
        return
    target = statistics.target(records)
    numbers = summary.table(records)
    yield Table("summary", "Summary", numbers, summary.readable(numbers, times=False))
    if len(numbers := seed_tests.table(records)):
        yield Table("paired", "Against LayerNorm, seed by seed", numbers, seed_tests.readable(numbers))
    if len(numbers := versus_paper.table(records)):
        yield Table("paper", "Compared with the paper", numbers, versus_paper.readable(numbers, target))
    yield from savings.tables(timings)
    if goal := time_to_target.level(records):
        split, level, title = goal
        numbers = time_to_target.table(records, split, level)
        yield Table("target", title, numbers, time_to_target.readable(numbers))
