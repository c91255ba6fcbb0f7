"""Comparisons drawn from records alone: no torch, so a report can be made on a laptop from copied records."""

from __future__ import annotations

from pathlib import Path

from rmsexp.compare.load import Records, load

__all__ = ["Records", "draw", "load"]


def draw(results: Path, task: str, setting: str) -> Path:
    """Draws the curves and the summary of one setting and returns their folder, ``<setting>/comparison``.

    Raises:
        ValueError: no run of the setting has any metrics.
    """
    from rmsexp import record
    from rmsexp.compare import figures, tables
    from rmsexp.compare.notes import notes

    folder = results / task / setting
    records = load(folder).of(task, setting)
    if records.metrics.empty:
        raise ValueError(f"{folder}: no run has any metrics yet, so there is nothing to draw")
    comparison = folder / "comparison"
    comparison.mkdir(exist_ok=True)
    table = tables.summary(records, task, setting)
    text = tables.to_markdown(table, f"{task}, {setting}", [*notes(records), *records.problems])
    record.write_atomic(comparison / "summary.csv", table.to_csv(index=False))
    record.write_atomic(comparison / "summary.md", text)
    figures.save(records, comparison)
    return comparison
