"""Figure 3 of the paper from runs: quality and time of pRMSNorm against p, the share of units in its mean.

Records alone, no torch; table and figure are those of :mod:`rmsexp.compare.ablation`.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from rmsexp.analysis.finding import Finding, Table, built_in, settings
from rmsexp.compare.plots import p_sweep as p_plot
from rmsexp.compare.records import names, statistics
from rmsexp.compare.tables import formats
from rmsexp.compare.tables import p_sweep as p_table


def analyse(results: Path) -> Finding:
    """A table and a figure for each setting below ``results`` that has runs of pRMSNorm with at least two p.

    Raises: ValueError where no setting has.
    """
    found, drawn, remarks = [], {}, []
    for folder, records in settings(results):
        if (records.runs["norm"] == p_table.PARTIAL).sum() < 2:
            continue
        task, setting = (str(records.runs[key].iloc[0]) for key in ("task", "setting"))
        table, aim = p_table.table(records, task, setting), statistics.target(records)
        if table.loc[table["series"] != p_table.WHOLE, "p"].nunique() < 2:
            continue
        name, title = str(folder / "p_sweep"), f"{task}, {setting}{built_in(records)}: p of pRMSNorm"
        found.append(Table(name, title, table, shown(table, aim)))
        drawn[name] = p_plot.draw(table, aim, title)
        remarks += records.problems
    if not found:
        raise ValueError(
            f"{results} has no setting with runs of pRMSNorm with several p; make them: "
            "python -m rmsexp -m task=cifar10 norm=prms norm.p=0.25,0.5,1.0 (sweep=p: ten of them), and norm=rms"
        )
    return Finding(found, drawn, remarks)


def shown(table: pd.DataFrame, aim: statistics.Target) -> pd.DataFrame:
    """A row a series: means over seeds, the metric in the unit it is shown in, and times of runs whose time counts."""
    factor, unit = names.scale_and_unit(aim.metric)
    metric = f"{names.metric_label(aim.metric)} {unit}".rstrip()
    counted = table["seconds_per_1k_steps"].where(table["time_state"] == "clear")
    of_series = table.assign(seconds=counted).groupby(["p", "series"], sort=False)
    means = of_series[["final", "best", "seconds"]].mean() * [factor, factor, 1.0]
    means.columns = pd.Index([f"last {metric}", f"best {metric} (on {aim.selection})", "seconds per 1k steps"])
    text = means.map(lambda value: formats.NO_VALUE if pd.isna(value) else f"{value:.4g}").reset_index()
    text.insert(1, "runs", of_series.size().astype(str).to_list())
    text["p"] = (text["p"] * 100).map("{:g} %".format)
    return text.assign(series=text["series"].map(names.norm_of).map(names.label)).rename(columns={"series": "norm"})
