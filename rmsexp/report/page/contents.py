"""The contents of the reports of one setting and of all campaigns, and their texts as Markdown and LaTeX."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from rmsexp.records.frames.load import Records
from rmsexp.report.plots.chart import Chart
from rmsexp.report.tables import markup
from rmsexp.report.tables.markup import Table


@dataclass(frozen=True)
class SettingReport:
    """The contents of the report of one setting.

    Attributes:
        path: the folder of the setting, in that of its task; results of two machines have different roots above it.
        folder: the folder to which the setting's figures and tables are written.
        records: the records of this setting; their ``problems`` list what could not be read or compared.
        tables: the tables; the first column of their texts is the norm.
        sentences: the findings in words (:mod:`rmsexp.report.tables.findings`).
        notes: the caveats, as lines of text: data, machine, reasons for caution.
        charts: the figures by the names of their files, without suffix. Without "curves", runs cannot be compared.
    """

    path: Path
    folder: Path
    records: Records
    tables: list[Table] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    charts: dict[str, Chart] = field(default_factory=dict)

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
        """Return the report as Markdown. Links are relative to ``to``.

        The title is a heading of this level; the headings of tables are one level deeper.
        """
        heading = "#" * level
        titles = {"curves": "Curves"} | {table.name: table.title for table in self.tables}
        parts = [f"{heading} {self.task}, {self.setting} ({self.root})", *self.sentences]
        parts += [f"![{titles[name]}]({quote(os.path.relpath(self.folder / name, to))}.png)" for name in self.charts]
        for table in self.tables:
            parts += [f"{heading}# {table.title}", markup.markdown(table.readable)]
        return markup.document([*parts, markup.listed([*self.notes, *self.records.problems])])

    @property
    def latex(self) -> str:
        """The tables as LaTeX; captions name the task and the setting."""
        captions = {f"{self.task}, {self.setting}: {table.title}": table.readable for table in self.tables}
        return "\n".join(markup.latex(table, caption) for caption, table in captions.items())


@dataclass(frozen=True)
class CampaignReport:
    """The contents of the report of all campaigns.

    Attributes:
        questions: the question of each campaign, with its name.
        numbers: the verdicts as numbers (:func:`rmsexp.report.tables.verdicts.table`).
        matrix: the matrix of claims and tasks (:func:`rmsexp.report.tables.verdicts.matrix`).
        verdicts: the readable table of verdicts.
        tables: the other readable tables by title.
        charts: the figures, by the names of their files, without suffix.
        notes: remarks, as lines of text.
        settings: the folders of the settings of the runs of each campaign, by its name in ``numbers``.
    """

    questions: list[str]
    numbers: pd.DataFrame
    matrix: pd.DataFrame
    verdicts: pd.DataFrame
    tables: dict[str, pd.DataFrame]
    charts: dict[str, Chart]
    notes: list[str]
    settings: dict[str, set[Path]]

    @property
    def markdown(self) -> str:
        """The report as Markdown; its figures are in the folder of the text."""
        parts = ["## Verdicts", markup.listed(self.questions)]
        parts += [markup.markdown(self.matrix), markup.markdown(self.verdicts)]
        for name, chart in self.charts.items():
            parts += [f"![{chart.title}]({name}.png)", *chart.caption]
        for title, table in self.tables.items():
            parts += [f"### {title}", markup.markdown(table)]
        return "\n\n".join([*parts, markup.listed(self.notes)]).rstrip()

    @property
    def latex(self) -> str:
        """All tables as LaTeX."""
        tables = {"Claims and tasks": self.matrix, "Verdicts": self.verdicts} | self.tables
        return "\n".join(markup.latex(table, caption) for caption, table in tables.items())
