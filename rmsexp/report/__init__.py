"""Reports about runs, from their records alone. Nothing here imports torch, so a report can be made on a laptop."""

from pathlib import Path

from rmsexp.records.frames.load import Records, load
from rmsexp.system import atomic
from rmsexp.system.command_line import inform
from rmsexp.system.lock import locked

__all__ = ["Records", "draw", "load"]

APART = "Times are of separate runs, and do not compare norms: python -m rmsexp.timing measures what a norm costs."
PATIENCE = 5.0  # seconds before a message: a figure takes less


def draw(results: Path, task: str, setting: str) -> Path:
    """Write the curves and the summary of one setting to ``<results>/<task>/<setting>/comparison``; return that folder.

    The training command does so when its runs have ended. Raises: NoMetricsError if no run of the setting has any
    metrics, or there is no such setting; ValueError if no ``run.json`` names a target metric.
    """
    from rmsexp.records.frames import caveats, quantities
    from rmsexp.report.plots import canvas, setting_curves
    from rmsexp.report.setting_report import NoMetricsError, SettingReport, check
    from rmsexp.report.tables import markup, summary

    folder = results / task / setting
    if not folder.is_dir():
        raise NoMetricsError(f"there is no folder {folder}, so there is nothing to draw")
    # Of two runs that end together, the one that loads the records first must not write its figures last.
    lock = folder / ".comparison.lock"
    with locked(lock, lambda: inform(f"waiting for another process that draws {folder}"), PATIENCE):
        records, to = load(folder).select(task, setting), folder / "comparison"
        check(records)
        to.mkdir(exist_ok=True)
        table = summary.table(records)
        tables = [markup.Table("summary", "Summary", table, summary.readable(table))]
        report = SettingReport(folder, to, records, tables, [APART], caveats.caveats(records))
        atomic.write_atomic(to / "summary.csv", markup.csv(table))
        atomic.write_atomic(to / "summary.md", report.markdown(to))
        canvas.write(setting_curves.draw(records, quantities.recorded(records)), to / "curves")
    return to
