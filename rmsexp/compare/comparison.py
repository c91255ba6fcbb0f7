"""Write the summary and the curves of one setting. The training command does so when its runs have ended."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from rmsexp import atomic
from rmsexp.compare.plots import setting_curves
from rmsexp.compare.records import statistics
from rmsexp.compare.records.caveats import caveats
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables import markup
from rmsexp.compare.tables import summary as summary_table


def draw(records: Records, folder: Path, summary: pd.DataFrame | None = None) -> Path:
    """Write the summary and the curves of one setting to ``<folder>/comparison`` and return that folder.

    Args:
        records: the records of the setting.
        folder: the folder of the setting.
        summary: the setting's :func:`rmsexp.compare.tables.summary.table`; by default it is computed here.

    Raises:
        ValueError: no run has any metrics, or no ``run.json`` names a target metric.
    """
    check(records, folder)
    comparison = folder / "comparison"
    comparison.mkdir(exist_ok=True)
    table = summary_table.table(records, *records.names) if summary is None else summary
    text = summary_table.to_markdown(table, ", ".join(records.names), [*caveats(records), *records.problems])
    atomic.write_atomic(comparison / "summary.csv", markup.csv(table))
    atomic.write_atomic(comparison / "summary.md", text)
    setting_curves.save(records, comparison)
    return comparison


def check(records: Records, folder: Path) -> None:
    """Raise ValueError if the records of a setting have no metrics, or if none of its runs names a target metric.

    ``folder``: the folder of the setting, for the message.
    """
    if records.metrics.empty:
        raise ValueError(f"{folder}: no run has any metrics yet, so there is nothing to draw")
    statistics.target(records)
