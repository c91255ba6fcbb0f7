"""The report of one setting: every figure and table, from records alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from rmsexp.compare.records.load import Records


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
