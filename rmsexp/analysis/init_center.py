"""Figure 4 of the paper from runs of task=rnnsearch whose initial weights are not centred on 0.

The analysis only reads records, and does not import torch. A series is a norm with the options that were changed.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmsexp.analysis.finding import Finding, Table, built_in, captioned, settings
from rmsexp.compare import Records
from rmsexp.compare.plots import canvas, panels, setting_curves, style
from rmsexp.compare.records import curves, names, statistics

TASK, KEY = "rnnsearch", "+model.init_center="  # the task, and what the setting's name must contain


def analyse(results: Path) -> Finding:
    """Return a table and a figure for each setting of task=rnnsearch in ``results`` that sets ``model.init_center``.

    Settings without evaluated runs are left out.

    Raises: ValueError if there is no such setting.
    """
    tables, plots, remarks = [], {}, []
    for folder, records in settings(results):
        task, setting = (str(records.runs[key].iloc[0]) for key in ("task", "setting"))
        if task != TASK or KEY not in setting or (rows := validation(records)).empty:
            continue
        name, title = str(folder / "init_center"), f"{task}, {setting}{built_in(records)}"
        table = summary(rows)
        tables.append(Table(name, f"{title}, on the validation set", table, _text(table)))
        plots[name] = draw(rows, statistics.target(records), title)
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


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per metric and series. ``rows``: the result of :func:`validation`.

    Columns: ``metric``; ``series``; ``runs``, their number; ``step``, the last step at which any of them was evaluated;
    ``last``, ``lowest``, ``highest``, the means over runs of a run's last, lowest and highest value.
    """
    per_run = rows.groupby(["metric", "series", "folder"], observed=True, sort=False).agg(
        step=("step", "last"), last=("value", "last"), lowest=("value", "min"), highest=("value", "max")
    )
    per_series = per_run.groupby(["metric", "series"], observed=True, sort=False)
    table = per_series[["last", "lowest", "highest"]].mean()
    table.insert(0, "step", per_series["step"].max())
    table.insert(0, "runs", per_series.size())
    order = [(metric, series) for metric in rows["metric"].unique() for series in names.in_order(rows["series"])]
    return table.loc[[key for key in order if key in table.index]].reset_index()


def _text(table: pd.DataFrame) -> pd.DataFrame:
    named = table.assign(metric=table["metric"].map(names.metric_label), series=table["series"].map(names.label))
    text = named.rename(columns={"series": "norm"})
    return text.map(lambda value: value if isinstance(value, str) else f"{value:.4g}")


def draw(rows: pd.DataFrame, aim: statistics.Target, title: str) -> Figure:
    """Draw a panel per metric, with thin lines for seeds and thick ones for means, and a panel with Figure 4."""
    caption = (
        f"{title}. Thin: one seed; thick: the mean of seeds. Right: the paper's Figure 4, WMT14, with its own axes."
    )
    metrics = sorted(rows["metric"].unique(), key=lambda metric: metric == "loss")
    figure = captioned("Initial weights not centred on 0 (Figure 4)", caption, 4.8 * (len(metrics) + 1), 4.2)
    *metric_axes, published = figure.subplots(1, len(metrics) + 1)
    for axes, metric in zip(metric_axes, metrics, strict=True):
        metric_rows = rows[rows["metric"] == metric]
        for series in names.in_order(metric_rows["series"]):
            _lines(axes, series, metric_rows[metric_rows["series"] == series])
        axes.set_ylabel(panels.Quantity(aim.selection, metric, aim.loss_unit).title)
    figure_4 = next(chart for chart in panels.paper_charts(TASK) if chart.source == "Figure 4")
    setting_curves.draw_panel(published, figure_4, figure_4.panels["step"], [])
    published.set_ylabel("valid BLEU, newstest2013")
    for axes in (*metric_axes, published):
        canvas.add_grid(axes)
        axes.legend(frameon=False, fontsize=9)
        axes.set_xlabel("step")
    return figure


def _lines(axes: Axes, series: str, rows: pd.DataFrame) -> None:
    lines = [curves.curve(run, "step", "value") for _, run in rows.groupby("folder", observed=True)]
    colour, mean = style.colour(names.norm_of(series)), curves.mean_curve(lines)
    for x, y in lines if len(lines) > 1 else []:
        axes.plot(x, y, color=colour, linewidth=style.THIN, alpha=0.5)
    axes.plot(mean["x"], mean["mean"], color=colour, linewidth=style.THICK, label=names.label(series))
