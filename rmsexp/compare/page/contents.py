"""The contents of the report of one setting, from which HTML, Markdown and LaTeX are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from rmsexp.compare.records.load import Records


@dataclass(frozen=True)
class SettingReport:
    """The report of one setting below one root.

    Attributes:
        task, setting: the names of its folders.
        root: the folder that contains the task's folder; the results of two machines are two roots.
        records: the records of this setting; their ``problems`` list what could not be read or compared.
        tables: readable tables (all cells are text) by title; their first column is the norm.
        sentences: the findings in words (:mod:`rmsexp.compare.tables.findings`).
        notes: the caveats that belong to every figure: data, machine, reasons for caution.
        figures: paths of PNG files by title.
        summary: the numbers of the first table (:func:`rmsexp.compare.tables.summary.table`).
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
        """The folder of the setting's figures and tables."""
        return Path(self.root, self.task, self.setting, "comparison")
