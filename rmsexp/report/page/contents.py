"""The contents of the reports of one setting and of all campaigns, from which HTML, Markdown and LaTeX are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from rmsexp.records.frames.load import Records
from rmsexp.report.plots.chart import Chart


@dataclass(frozen=True)
class SettingReport:
    """The contents of the report of one setting.

    Attributes:
        task: the task, which is the name of a folder in ``root``.
        setting: the setting, which is the name of a folder in the task's folder.
        root: the folder that contains the task's folder; results of two machines have different roots.
        folder: the folder to which the setting's figures and tables are written.
        records: the records of this setting; their ``problems`` list what could not be read or compared.
        tables: readable tables (all cells are text) by title; their first column is the norm.
        sentences: the findings in words (:mod:`rmsexp.report.tables.findings`).
        notes: the caveats, as lines of text: data, machine, reasons for caution.
        figures: paths of PNG files by title.
        curves: the chart of its quantities; None if its runs cannot be compared.
        tests: the differences from LayerNorm as numbers (:func:`rmsexp.report.tables.seed_tests.table`).
        summary: the summary as numbers (:func:`rmsexp.report.tables.summary.table`).
    """

    task: str
    setting: str
    root: str
    folder: Path
    records: Records
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)
    curves: Chart | None = None
    tests: pd.DataFrame = field(default_factory=pd.DataFrame)
    summary: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def path(self) -> Path:
        """The folder of the setting."""
        return Path(self.root, self.task, self.setting)

    @property
    def captioned(self) -> dict[str, pd.DataFrame]:
        """The tables by captions that name the task and the setting."""
        return {f"{self.task}, {self.setting}: {title}": table for title, table in self.tables.items()}


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
    def captioned(self) -> dict[str, pd.DataFrame]:
        """All tables by their captions."""
        return {"Claims and tasks": self.matrix, "Verdicts": self.verdicts} | self.tables
