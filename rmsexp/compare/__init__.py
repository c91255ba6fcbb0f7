"""Comparisons drawn from records alone: no torch, so a report can be made on a laptop from copied records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rmsexp.compare.load import Records, load

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Records", "draw", "load"]


def draw(results: Path, task: str, setting: str) -> Path:
    """Draws the curves and the summary of one setting and returns their folder, ``<setting>/comparison``.

    Raises:
        ValueError: no run of the setting has any metrics.
    """
    folder = results / task / setting
    return draw_records(load(folder).of(task, setting), folder)


def draw_records(records: Records, folder: Path, summary: pd.DataFrame | None = None) -> Path:
    """The same from one setting's records that are loaded already, and its summary, if that is known, too."""
    from rmsexp import record
    from rmsexp.compare import figures, tables
    from rmsexp.compare.notes import notes

    check(records, folder)
    comparison = folder / "comparison"
    comparison.mkdir(exist_ok=True)
    table = tables.summary(records, *records.names) if summary is None else summary
    text = tables.to_markdown(table, ", ".join(records.names), [*notes(records), *records.problems])
    record.write_atomic(comparison / "summary.csv", table.to_csv(index=False))
    record.write_atomic(comparison / "summary.md", text)
    figures.save(records, comparison)
    return comparison


def check(records: Records, folder: Path) -> None:
    """Raises: ValueError if there is nothing to draw, or no run says what it aims at; ``folder``: the setting's."""
    from rmsexp.compare import stats

    if records.metrics.empty:
        raise ValueError(f"{folder}: no run has any metrics yet, so there is nothing to draw")
    stats.target(records)
