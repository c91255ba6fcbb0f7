"""The quantities of the curves at the common step, one row per norm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from rmsexp.records.frames import names, quantities, statistics
from rmsexp.records.frames.load import Records
from rmsexp.report.tables import formats
from rmsexp.report.tables.form import Setting, Table
from rmsexp.rules.quantities import Quantity


def tables(setting: Setting) -> Iterator[Table]:
    """Yield the table of the quantities of a setting."""
    records, step = setting.records, statistics.common_step(setting.records)
    title = "What the curves show" + (f" at step {step}" if step is not None else "")
    numbers = table(records)
    yield Table("quantities", title, numbers, readable(numbers, records))


def table(records: Records) -> pd.DataFrame:
    """Return one row per series of a setting: ``series``, ``runs`` and, for each recorded quantity, four columns.

    ``<name>``: the mean over the runs that neither diverged nor failed, in fractions (not percent), at the common step;
    of a quantity of training, in the last row up to this step, which has the mean over the steps since the row before.
    ``<name>_n``: the number of these runs; ``<name>_sd``: the standard deviation over seeds; ``<name>_interval``: half
    of the 95 % t-interval, from three seeds on.
    """
    runs = records.runs.set_index("folder")["series"]
    shown = {quantity.name: _values(records, quantity) for quantity in quantities.recorded(records)}
    rows = []
    for series in names.in_order(runs):
        row: dict[str, Any] = {"series": series, "runs": int((runs == series).sum())}
        for name, values in shown.items():
            of_runs = values.reindex(runs.index[runs == series]).dropna().to_numpy(float)
            mean, sd, interval = statistics.estimate(of_runs)
            row |= {name: mean, f"{name}_n": len(of_runs), f"{name}_sd": sd, f"{name}_interval": interval}
        rows.append(row)
    return pd.DataFrame(rows)


def _values(records: Records, quantity: Quantity) -> pd.Series:
    """Return each run's value of a quantity at the common step, by folder. Runs that did not reach it are left out."""
    step = statistics.common_step(records)
    rows = statistics.evaluations(records, quantity.split, quantity.metric)
    if step is None:
        return pd.Series(dtype=float)
    compared = rows["step"] == step
    if quantity.split == quantities.TRAIN:
        target = statistics.target(records)
        reached = statistics.evaluations(records, target.split, target.metric)
        compared = (rows["step"] <= step) & rows["folder"].isin(reached.loc[reached["step"] == step, "folder"])
    return rows[compared].groupby("folder")["value"].last()


def readable(table: pd.DataFrame, records: Records) -> pd.DataFrame:
    """Return the means of the :func:`table` of ``records`` as text, with intervals.

    A mean that leaves runs out is followed by "2 of 3 runs".
    """
    rows = []
    for row in table.to_dict("records"):
        cells = {"norm": names.label(row["series"])}
        for one in quantities.recorded(records):
            mean, interval, count = (row[f"{one.name}{part}"] for part in ("", "_interval", "_n"))
            remarks = [f"{count} of {row['runs']} runs"] if count != row["runs"] else []
            cells[quantities.title(one)] = formats.quality(mean * one.factor, "", interval * one.factor, remarks)
        rows.append(cells)
    return pd.DataFrame(rows)
