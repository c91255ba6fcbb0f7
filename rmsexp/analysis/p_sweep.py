"""Figure 3 of the paper from runs: quality and time of pRMSNorm against p, the share of units in its mean square.

The analysis only reads records, and does not import torch. Its CSV files and figures are those of the report. A series
is a norm with the options that were changed.
"""

from __future__ import annotations

from pathlib import Path

from rmsexp.analysis.finding import Finding, Table, built_in, settings
from rmsexp.report.plots import canvas
from rmsexp.report.plots import p_sweep as p_plot
from rmsexp.report.tables import p_sweep as p_table


def analyse(results: Path) -> Finding:
    """Return a table and a figure for each setting in ``results`` that has runs of pRMSNorm with several values of p.

    Runs in which another option of the norm was changed are left out.

    Raises: ValueError if there is no such setting.
    """
    tables, plots, remarks = [], {}, []
    for folder, records in settings(results):
        if (records.runs["norm"] == p_table.PARTIAL).sum() < 2:
            continue
        task, setting = records.names
        table = p_table.table(records, task, setting)
        if not p_table.has_several(table):
            continue
        name, title = str(folder / "p_sweep"), f"{task}, {setting}{built_in(records)}: p of pRMSNorm"
        tables.append(Table(name, title, table, p_table.readable(table, records)))
        plots[name] = canvas.draw(p_plot.chart(table, records, title))
        remarks += records.problems
    if not tables:
        raise ValueError(
            f"{results} has no setting with runs of pRMSNorm for several values of p; "
            "make runs for ten values: python -m rmsexp -m task=cifar10 sweep=p"
        )
    return Finding(tables, plots, remarks)
