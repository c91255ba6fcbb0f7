"""What ``rmsexp.run`` returns: the record of a run, with its curves as a data frame and as a figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rmsexp.records import record
from rmsexp.report import load

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Result(record.Record):
    """The record of a run; :func:`read` makes it. Its attributes are those of :class:`rmsexp.records.record.Record`."""

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
    """Return the record of the run in a folder. Raises: OSError or ValueError if a file is missing or damaged."""
    return Result(**vars(record.read(folder)))
