"""What ``rmsexp.run`` returns: the record of a run, with its curves as a data frame and as a figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmsexp.records import record
from rmsexp.records.record import StatusContent
from rmsexp.report import load
from rmsexp.system.readers import read_json

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Result:
    """The record of a run: the content of ``run.json`` and ``status.json``, and the rows of its metrics."""

    folder: Path
    run: dict[str, Any]
    status: StatusContent
    metrics: list[record.Row]

    def __repr__(self) -> str:
        last = next((row for row in reversed(self.metrics) if row["split"] == self.run["target"]["split"]), None)
        end = f", {last['split']} {record.metrics_text(last, self.run['target']['metric'])}" if last else ""
        state = f"{self.status['status']} at step {self.status['step']}"
        return f"<run {'/'.join(self.folder.parts[-4:])}: {state}{end}>"

    def curves(self) -> pd.DataFrame:
        """Return the metrics: a row per step and split that was logged, with ``step`` and ``time`` (seconds)."""
        return load(self.folder).metrics.dropna(axis="columns", how="all")

    def plot(self) -> Figure:
        """Return a figure of the run's quantities against steps and against time."""
        from rmsexp.records.frames import quantities
        from rmsexp.report.plots import setting_curves

        records = load(self.folder)
        return setting_curves.draw(records, quantities.recorded(records))


def read(folder: Path) -> Result:
    """Return the record of the run in a folder. Metrics from the first damaged line on are left out.

    Raises: OSError or ValueError if a file is missing, or ``run.json`` or ``status.json`` is damaged.
    """
    files = record.RunFolder(folder)
    rows, _ = files.read_metrics()
    return Result(folder, read_json(files.run_path), files.read_status(), rows)
