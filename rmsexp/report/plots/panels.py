"""The curves of each chart, computed once for the matplotlib figures and for the HTML page.

A chart shows one quantity, in a panel against steps and a panel against time. A series is a norm with the options that
were changed. In each panel, a series has a line per seed, a line of the mean over seeds and, from three seeds on, a
band: the 95 % t-interval of the mean. The mean leaves out runs that diverged or failed and, against time, runs whose
time is not clear. It ends where fewer than half of the others go on, so a legend counts the seeds of each panel
(:func:`seeds`). A spike does not set the range of the axis (:mod:`rmsexp.report.plots.ranges`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from rmsexp.records.frames import caveats, curves, names, quantities, speed, statistics
from rmsexp.records.frames.load import Records
from rmsexp.report import paper
from rmsexp.report.paper import matching
from rmsexp.report.plots import ranges
from rmsexp.report.plots.ranges import Beyond, Range
from rmsexp.report.plots.style import PAPER, TIME_EXCLUDED, Dash
from rmsexp.rules.quantities import Quantity

Axis = Literal["step", "time", "epoch"]
AXES: tuple[Axis, ...] = ("step", "time")


class Limits(NamedTuple):
    """The maximal numbers of points: ``seed`` in the curve of a seed, ``mean`` in the curve of a mean."""

    seed: int
    mean: int


class Seed(NamedTuple):
    """The thinned curve of one run, whose seed is ``number``.

    ``time_excluded``: whether x is time, and the time of the run is not clear or of another clock than most.
    """

    number: int
    x: statistics.Array
    y: statistics.Array
    time_excluded: bool
    diverged: bool

    @property
    def dash(self) -> Dash | None:
        """The dashes of the line; None stands for the dashes of its series."""
        return TIME_EXCLUDED if self.time_excluded else None


class Curve(NamedTuple):
    """The lines of one series in a panel, or a curve of the paper.

    Attributes:
        series: the name of the series.
        seeds: the curve of each run; empty for a curve of the paper.
        mean: the thinned mean, columns ``x``, ``mean``, ``low``, ``high``. The band is from ``low`` to ``high``, which
            are NaN below three seeds and for curves of the paper.
        averaged: the number of seeds in the mean, at most; 0 for a curve of the paper.
        at_end: the number of seeds in the mean where it ends.
        time_excluded: whether x is time, and the mean includes runs whose time is excluded, for lack of others.
        from_paper: whether ``mean`` is a curve of the paper.
    """

    series: str
    seeds: list[Seed]
    mean: pd.DataFrame
    averaged: int = 0
    at_end: int = 0
    time_excluded: bool = False
    from_paper: bool = False

    @property
    def dash(self) -> Dash | None:
        """The dashes of the mean; None stands for the dashes of its series."""
        return PAPER if self.from_paper else TIME_EXCLUDED if self.time_excluded else None

    @property
    def has_band(self) -> bool:
        return bool(self.mean["low"].notna().any())

    @property
    def all_diverged(self) -> bool:
        return bool(self.seeds) and all(seed.diverged for seed in self.seeds)


class Panel(NamedTuple):
    """The curves against one x axis, the title of this axis, and where curves are furthest beyond the y axis."""

    x_title: str
    curves: list[Curve]
    beyond: Sequence[Beyond] = ()


class Chart(NamedTuple):
    """A quantity against steps, time, or both.

    Attributes:
        title: the title of the y axis.
        limits: the range of the y axis, and whether it is logarithmic.
        panels: the panels, by x axis.
        may_be_log: whether a logarithmic axis makes sense for the quantity.
        source: the figure of the paper that the curves were read from, such as "Figure 1"; empty for our curves.
    """

    title: str
    limits: Range
    panels: dict[Axis, Panel]
    may_be_log: bool = False
    source: str = ""


class Setting(NamedTuple):
    """The charts of a setting.

    Attributes:
        title: task and setting.
        caption: a few words on the data and each reason for caution.
        runs: the number of runs of each series, in the order of the legend.
        charts: a chart per quantity.
    """

    title: str
    caption: str
    runs: dict[str, int]
    charts: list[Chart]


def setting(records: Records, shown: Sequence[Quantity], limits: Limits) -> Setting:
    """Return the charts of these quantities, with curves thinned to ``limits``. ``records``: those of one setting."""
    counts = records.runs["series"].value_counts()
    runs = {series: int(counts[series]) for series in names.in_order(counts.index)}
    charts = [chart(records, quantity, limits) for quantity in shown]
    return Setting(", ".join(records.names), "; ".join(caveats.brief(records)), runs, charts)


def chart(records: Records, quantity: Quantity, limits: Limits, axes: Sequence[Axis] = AXES) -> Chart:
    """Return the chart of a quantity, with curves thinned to ``limits``.

    The panel against steps has the paper's curves, too, if they are comparable.
    """
    rows = quantities.values(records, quantity)
    rows[quantity.metric] *= quantity.factor
    unit, divisor = speed.time_unit(rows["time"].max())
    rows["time"] /= divisor
    panels: dict[Axis, Panel] = {}
    for axis in axes:
        points = curves.curves(rows, axis, quantity.metric)
        title = _time_title(unit) if axis == "time" else axis
        found = _curves(records.runs, points, limits, axis == "time")
        possible = ranges.bounds([y for _, y in points.values()], quantity.unit)
        panels[axis] = Panel(title, [_cut(curve, possible) for curve in found])
    if "step" in panels:
        panels["step"].curves[:0] = _paper_curves(matching.curves_of(records, quantity))
    return ranged(Chart(quantities.title(quantity), Range(0, 1), panels, quantity.log))


def _cut(curve: Curve, possible: tuple[float, float]) -> Curve:
    """Return a curve whose band has possible values only."""
    band = {end: np.clip(curve.mean[end].to_numpy(float), *possible) for end in ("low", "high")}
    return curve._replace(mean=curve.mean.assign(**band))


def ranged(chart: Chart) -> Chart:
    """Return the chart with the range of its y axis, and the points where curves leave this range."""
    every = [curve for panel in chart.panels.values() for curve in panel.curves]
    means = [curve.mean["mean"].to_numpy(float) for curve in every]
    seeds = [seed for curve in every for seed in curve.seeds]
    ends = [mean[-1] for mean, curve in zip(means, every, strict=True) if len(mean) and not curve.all_diverged]
    ends += [float(seed.y[-1]) for seed in seeds if not seed.diverged]
    limits = ranges.robust([*means, *(seed.y for seed in seeds)], ends, chart.may_be_log)
    panels = {axis: panel._replace(beyond=_beyond(panel, limits)) for axis, panel in chart.panels.items()}
    return chart._replace(limits=limits, panels=panels)


def _beyond(panel: Panel, limits: Range) -> list[Beyond]:
    lines: dict[str, list[curves.Points]] = {}
    for curve in panel.curves:
        mean = (curve.mean["x"].to_numpy(float), curve.mean["mean"].to_numpy(float))
        lines.setdefault(curve.series, []).extend([mean, *((seed.x, seed.y) for seed in curve.seeds)])
    return ranges.beyond(lines, limits)


def thinned(chart: Chart, limits: Limits) -> Chart:
    """Return the chart with curves of at most so many points."""
    panels = {
        axis: panel._replace(curves=[_thinned(curve, limits) for curve in panel.curves])
        for axis, panel in chart.panels.items()
    }
    return chart._replace(panels=panels)


def _thinned(curve: Curve, limits: Limits) -> Curve:
    kept = curves.thinned(curve.mean["mean"].to_numpy(float), limits.mean)
    seeds = [(seed, curves.thinned(seed.y, limits.seed)) for seed in curve.seeds]
    thin = [seed._replace(x=seed.x[points], y=seed.y[points]) for seed, points in seeds]
    return curve._replace(mean=curve.mean.iloc[kept], seeds=thin)


def seeds(chart: Chart, series: str, runs: int) -> str:
    """Return the number of seeds in the means of a series, such as "2 of 3 seeds; against time: 1".

    The number is smaller in a panel whose mean leaves runs out, or where some runs are shorter than others: "3 seeds, 2
    at the end". ``runs``: the number of all runs of the series.
    """
    by_step, by_time = (_averaged(chart.panels[axis].curves, series) for axis in AXES)
    text = f"{runs} seed{'s' if runs > 1 else ''}" if by_step[0] == runs else f"{by_step[0]} of {runs} seeds"
    if by_step[1] < by_step[0]:
        text += f", {by_step[1]} at the end"
    at_end = f", {by_time[1]} at the end" if by_time[1] < by_time[0] else ""
    return text if by_time == by_step else f"{text}; against time: {by_time[0]}{at_end}"


def _averaged(curves: Sequence[Curve], series: str) -> tuple[int, int]:
    """Return the number of seeds in the mean of a series, at most and at its end."""
    own = [curve for curve in curves if curve.series == series]
    return sum(curve.averaged for curve in own), sum(curve.at_end for curve in own)


def _time_title(unit: str) -> str:
    return f"time in training ({unit})"


def _curves(runs: pd.DataFrame, points: dict[str, curves.Points], limits: Limits, timed: bool) -> list[Curve]:
    """Return a curve per series, whose mean is over the runs of :func:`rmsexp.records.frames.curves.averaged`.

    ``points``: the points of each run by its folder; other runs are left out. ``timed``: whether x is time.
    """
    runs = runs[runs["folder"].isin(list(points))]
    time_excluded = (runs["time_state"] != "clear") & timed
    result = []
    for series in names.in_order(runs["series"]):
        series_runs = runs[runs["series"] == series].assign(time_excluded=time_excluded)
        averaged, _ = curves.averaged(series_runs, timed=timed)
        mean = curves.mean_curve([points[folder] for folder in averaged["folder"]])
        drawn = series_runs[["folder", "seed", "status", "time_excluded"]].to_dict("records")
        seeds = [_seed(run, points[run["folder"]], limits.seed) for run in drawn]
        counts = int(mean["seeds"].max()), int(mean["seeds"].iloc[-1])
        mean = mean.iloc[curves.thinned(mean["mean"].to_numpy(), limits.mean)]
        result.append(Curve(series, seeds, mean, *counts, bool(averaged["time_excluded"].any())))
    return result


def _seed(run: dict[Hashable, Any], points: curves.Points, limit: int) -> Seed:
    x, y = points
    indices = curves.thinned(y, limit)
    return Seed(run["seed"], x[indices], y[indices], run["time_excluded"], run["status"] == "diverged")


def paper_charts(task: str) -> list[Chart]:
    """Return a chart for each figure and metric of the paper's curves for a task, or an empty list.

    Figures 1a and 1b are the panels of one chart, against steps and against time.
    """
    points = paper.curves()
    charts: dict[tuple[str, str], Chart] = {}
    for (figure, metric, unit), rows in points[points["task"] == task].groupby(["figure", "metric", "x_unit"]):
        source = str(figure).rstrip("ab")
        title = quantities.title(quantities.usual(matching.CURVE_SPLITS[str(metric)], str(metric)))
        panels = charts.setdefault((source, str(metric)), Chart(title, Range(0, 1), {}, source=source)).panels
        axis: Axis = "step" if unit == "step" else "time"
        panels[axis] = Panel("step" if unit == "step" else _time_title(str(unit)), _paper_curves(rows))
    return [ranged(chart) for chart in charts.values()]


def _paper_curves(rows: pd.DataFrame) -> list[Curve]:
    """Return a curve per norm. ``rows``: rows of :func:`rmsexp.report.paper.curves` for one pair of axes."""
    lines = rows.rename(columns={"y": "mean"}).reindex(columns=["norm", "x", "mean", "low", "high"])
    return [Curve(norm, [], lines[lines["norm"] == norm], from_paper=True) for norm in names.in_order(rows["norm"])]
