"""Write the summary and the curves of one setting. The training command does so when its runs have ended."""

from __future__ import annotations

from pathlib import Path

from rmsexp.records.frames import quantities, statistics
from rmsexp.records.frames.caveats import caveats
from rmsexp.records.frames.load import Records
from rmsexp.report.page import markdown
from rmsexp.report.page.contents import SettingReport
from rmsexp.report.plots import canvas, setting_curves
from rmsexp.report.tables import markup
from rmsexp.report.tables import summary as summary_table
from rmsexp.system import atomic

APART = "Times are of separate runs, and do not compare norms: python -m rmsexp.timing measures what a norm costs."


class NoMetricsError(ValueError):
    """No run of a setting has any metrics yet."""


def draw(records: Records, folder: Path) -> Path:
    """Write the summary and the curves of one setting into ``folder``, which is made if it is missing; return it.

    Args:
        records: the records of the setting.
        folder: the folder of the figure.

    Raises:
        NoMetricsError: no run has any metrics.
        ValueError: no ``run.json`` names a target metric.
    """
    check(records)
    folder.mkdir(parents=True, exist_ok=True)
    table = summary_table.table(records)
    report = SettingReport(
        *records.names,
        root=str(folder.parents[2]),
        folder=folder,
        records=records,
        tables={"Summary": summary_table.readable(table)},
        sentences=[APART],
        notes=caveats(records),
    )
    atomic.write_atomic(folder / "summary.csv", markup.csv(table))
    atomic.write_atomic(folder / "summary.md", markdown.setting(report, folder))
    canvas.write(setting_curves.draw(records, quantities.recorded(records)), folder / "curves")
    return folder


def check(records: Records) -> None:
    """Raise NoMetricsError if no run of a setting has metrics, and ValueError if none names a target metric."""
    if records.metrics.empty:
        raise NoMetricsError(f"{statistics.folder(records)}: no run has any metrics yet, so there is nothing to draw")
    statistics.target(records)
