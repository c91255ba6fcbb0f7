"""Figure 4 of the paper from runs of task=rnnsearch whose initial weights are not centred on 0.

The analysis only reads records, and does not import torch. A series is a norm with the options that were changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from rmsexp.analysis.finding import Finding, Table, built_in, settings
from rmsexp.records.frames import names, quantities, statistics
from rmsexp.report import Records
from rmsexp.report.plots import canvas, paper_figures, setting_curves, style
from rmsexp.report.plots.chart import Chart, legend
from rmsexp.report.tables import formats

TASK, KEY = "rnnsearch", "+model.init_center="  # the task, and what the setting's name must contain


def analyse(results: Path) -> Finding:
    """Return a table and a figure for each setting of task=rnnsearch in ``results`` that sets ``model.init_center``.

    Settings without evaluated runs are left out.

    Raises: ValueError if there is no such setting.
    """
    tables, plots, remarks = [], {}, []
    for folder, records in settings(results):
        task, setting = records.names
        if task != TASK or KEY not in setting or (rows := validation(records)).empty:
            continue
        name, title = str(folder / "init_center"), f"{task}, {setting}{built_in(records)}"
        table = summary(rows, records.runs)
        tables.append(Table(name, f"{title}, on the validation set", table, _text(table)))
        plots[name] = draw(records, rows["metric"].unique().tolist(), f"{title}{_not_drawn(records.runs)}")
        remarks += records.problems
    if not tables:
        raise ValueError(
            f"{results} has no evaluated runs of task={TASK} with model.init_center; make them: "
            f"python -m rmsexp -m task={TASK} model.init_center=0.2 norm=ln,rms"
        )
    return Finding(tables, plots, remarks)


def validation(records: Records) -> pd.DataFrame:
    """Return the target metric and the loss on the validation set, a row per run, step and metric.

    Columns ``folder``, ``series``, ``step``, ``value``, ``metric``. Rows are sorted by step. Runs that diverged or
    failed are left out.
    """
    aim = statistics.target(records)
    parts = [
        statistics.evaluations(records, aim.selection, metric).assign(metric=metric) for metric in (aim.metric, "loss")
    ]
    return pd.concat(parts, ignore_index=True).sort_values("step", kind="stable")


def summary(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per metric and series, also for a series of which all runs diverged or failed.

    ``rows``: the result of :func:`validation`; ``runs``: the runs of the setting, as in ``Records.runs``. Columns:
    ``metric``; ``series``; ``runs``, the number of runs that were evaluated; ``step``, the last step at which any of
    them was; ``last``, ``lowest``, ``highest``, the means over them of a run's last, lowest and highest value;
    ``last_interval``, ``lowest_interval``, ``highest_interval``, half of their 95 % t-intervals, NaN below three runs;
    ``diverged``, ``failed``, the numbers of runs that did so and are not in the means.
    """
    summaries = []
    for metric in rows["metric"].unique():
        for series in names.in_order(runs["series"]):
            of_series = rows[(rows["metric"] == metric) & (rows["series"] == series)]
            status = runs.loc[runs["series"] == series, "status"]
            lost = {name: int((status == name).sum()) for name in statistics.LOST}
            if len(of_series) or sum(lost.values()):
                summaries.append({"metric": metric, "series": series} | _over_runs(of_series) | lost)
    return pd.DataFrame(summaries)


def _over_runs(rows: pd.DataFrame) -> dict[str, float]:
    """Return the columns of :func:`summary` that are computed from the evaluations of one metric and series."""
    per_run = rows.groupby("folder", observed=True, sort=False)["value"].agg(["last", "min", "max"])
    means = {
        name: statistics.estimate(per_run[kind].to_numpy(float))
        for name, kind in (("last", "last"), ("lowest", "min"), ("highest", "max"))
    }
    return {
        "runs": len(per_run),
        "step": rows["step"].max(),
        **{name: found.mean for name, found in means.items()},
        **{f"{name}_interval": found.interval for name, found in means.items()},
    }


def _text(table: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "metric": names.metric_label(row["metric"]),
            "norm": names.label(row["series"]),
            "runs": f"{row['runs']}",
            **{name: f"{row[name]}" for name in statistics.LOST},
            "step": formats.NO_VALUE if math.isnan(row["step"]) else formats.without_exponent(row["step"]),
            **{name: _mean(row[name], row[f"{name}_interval"]) for name in ("last", "lowest", "highest")},
        }
        for row in table.to_dict("records")
    )


def _mean(mean: float, interval: float) -> str:
    if math.isnan(mean):
        return formats.NO_VALUE
    return f"{mean:.4g}" + ("" if math.isnan(interval) else f" ± {interval:.2g}")


def _not_drawn(runs: pd.DataFrame) -> str:
    """Return a sentence with the number of runs of each series that diverged or failed; empty if none did."""
    lost = runs.loc[runs["status"].isin(statistics.LOST), "series"]
    counts = ", ".join(f"{names.label(series)} {(lost == series).sum()}" for series in names.in_order(lost))
    return f". Runs that diverged or failed, which are not drawn: {counts}" if counts else ""


def draw(records: Records, metrics: Sequence[str], title: str) -> Figure:
    """Draw a panel per metric on the validation set, and the paper's Figure 4."""
    aim, looks = statistics.target(records), style.looks(names.in_order(records.runs["series"]))
    lost = records.runs["status"].isin(statistics.LOST)
    kept = records.only(records.runs["folder"][~lost])
    panels = [
        panel
        for metric in sorted(metrics, key=lambda metric: metric == "loss")
        for panel in setting_curves.panels(kept, quantities.usual(aim.selection, metric), looks, ["step"])
    ]
    of_paper = paper_figures.of_paper("Figure 4", quantities.usual("valid", "bleu"), "step", style.looks(["ln", "rms"]))
    assert of_paper is not None
    drawn = legend(panels)
    panels.append(replace(of_paper, title="Figure 4 of the paper: WMT14, newstest2013"))
    caption = [title, setting_curves.reading(panels)]
    return canvas.draw(Chart("Initial weights not centred on 0 (Figure 4)", caption, panels, drawn))
