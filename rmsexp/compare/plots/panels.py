"""The curves of each chart, computed once for the matplotlib figures and for the HTML page.

A chart shows one quantity, in a panel against steps and a panel against time. A series is a norm with the options that
were changed. In each panel, a series has a line per seed, a line of the mean over seeds and, from three seeds on, a
band: the 95 % t-interval of the mean. The mean leaves out runs that diverged or failed and, against time, runs whose
time is not clear, so a legend counts the seeds of each panel (:func:`seeds`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple

import pandas as pd

from rmsexp.compare import paper
from rmsexp.compare.paper import matching
from rmsexp.compare.plots.style import PAPER, TIME_EXCLUDED, Dash
from rmsexp.compare.records import curves, names, quantities, speed, statistics
from rmsexp.compare.records.load import Records
from rmsexp.rules.quantities import Quantity

DECADES = 100  # the axis of a loss is logarithmic if its largest value is more than this times its smallest

Axis = Literal["step", "time", "epoch"]
AXES: tuple[Axis, ...] = ("step", "time")


class Limits(NamedTuple):
    """The maximal numbers of points: ``seed`` in the curve of a seed, ``mean`` in the curve of a mean."""

    seed: int
    mean: int


class Seed(NamedTuple):
    """The thinned curve of one run, whose seed is ``number``.

    ``time_excluded``: whether x is time, and the time of the run is not clear.
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
        averaged: the number of seeds in the mean; 0 for a curve of the paper.
        time_excluded: whether x is time, and the mean includes runs whose time is not clear, for lack of others.
        from_paper: whether ``mean`` is a curve of the paper.
    """

    series: str
    seeds: list[Seed]
    mean: pd.DataFrame
    averaged: int = 0
    time_excluded: bool = False
    from_paper: bool = False

    @property
    def dash(self) -> Dash | None:
        """The dashes of the mean; None stands for the dashes of its series."""
        return PAPER if self.from_paper else TIME_EXCLUDED if self.time_excluded else None

    @property
    def has_band(self) -> bool:
        return bool(self.mean["low"].notna().any())


class Panel(NamedTuple):
    """The curves against one x axis, and the title of this axis."""

    x_title: str
    curves: list[Curve]


class Chart(NamedTuple):
    """A quantity against steps, time, or both.

    Attributes:
        title: the title of the y axis.
        log: whether the y axis is logarithmic.
        panels: the panels, by x axis.
        source: the figure of the paper that the curves were read from, such as "Figure 1"; empty for our curves.
    """

    title: str
    log: bool
    panels: dict[Axis, Panel]
    source: str = ""


def chart(records: Records, quantity: Quantity, limits: Limits, axes: Sequence[Axis] = AXES) -> Chart:
    """Return the chart of a quantity, with curves thinned to ``limits``.

    The panel against steps has the paper's curves, too, if they are comparable.
    """
    rows = quantities.values(records, quantity)
    rows[quantity.metric] *= quantity.factor
    unit, divisor = speed.time_unit(rows["time"].max())
    rows["time"] /= divisor
    panels = {}
    for axis in axes:
        points = curves.curves(rows, axis, quantity.metric)
        title = _time_title(unit) if axis == "time" else axis
        panels[axis] = Panel(title, _curves(records.runs, points, limits, axis == "time"))
    if "step" in panels:
        panels["step"].curves[:0] = _paper_curves(matching.curves_of(records, quantity))
    log = quantity.log and _spans_decades(rows[quantity.metric])
    return Chart(quantities.title(quantity), log, panels)


def seeds(chart: Chart, series: str, runs: int) -> str:
    """Return how many seeds the means of a series are of, such as "2 of 3 seeds; against time: 1".

    The number is smaller in a panel whose mean leaves runs out. ``runs``: the number of all runs of the series.
    """
    lines = chart.panels["step"].curves, chart.panels["time"].curves
    by_step, by_time = (sum(curve.averaged for curve in panel if curve.series == series) for panel in lines)
    text = f"{runs} seed{'s' if runs > 1 else ''}" if by_step == runs else f"{by_step} of {runs} seeds"
    return text if by_time == by_step else f"{text}; against time: {by_time}"


def _time_title(unit: str) -> str:
    return f"time in training ({unit})"


def _spans_decades(values: pd.Series) -> bool:
    low, high = values.min(), values.max()
    return bool(low > 0 and high > DECADES * low)


def _curves(runs: pd.DataFrame, points: dict[str, curves.Points], limits: Limits, timed: bool) -> list[Curve]:
    """Return a curve per series, whose mean is over the runs of :func:`rmsexp.compare.records.curves.averaged`.

    ``points``: the points of each run by its folder; other runs are left out. ``timed``: whether x is time.
    """
    runs = runs[runs["folder"].isin(list(points))]
    time_excluded = (runs["time_state"] != "clear") & timed
    result = []
    for series in names.in_order(runs["series"]):
        series_runs = runs[runs["series"] == series].assign(time_excluded=time_excluded)
        averaged, _ = curves.averaged(series_runs, timed=timed)
        mean = curves.mean_curve([points[folder] for folder in averaged["folder"]])
        mean = mean.iloc[curves.thinned(mean["mean"].to_numpy(), limits.mean)]
        drawn = series_runs[["folder", "seed", "status", "time_excluded"]].to_dict("records")
        seeds = [_seed(run, points[run["folder"]], limits.seed) for run in drawn]
        result.append(Curve(series, seeds, mean, len(averaged), bool(averaged["time_excluded"].any())))
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
        panels = charts.setdefault((source, str(metric)), Chart(title, False, {}, source)).panels
        axis: Axis = "step" if unit == "step" else "time"
        panels[axis] = Panel("step" if unit == "step" else _time_title(str(unit)), _paper_curves(rows))
    return list(charts.values())


def _paper_curves(rows: pd.DataFrame) -> list[Curve]:
    """Return a curve per norm. ``rows``: rows of :func:`rmsexp.compare.paper.curves` for one pair of axes."""
    lines = rows.rename(columns={"y": "mean"}).reindex(columns=["norm", "x", "mean", "low", "high"])
    return [Curve(norm, [], lines[lines["norm"] == norm], from_paper=True) for norm in names.in_order(rows["norm"])]
