"""The figures of the paper in its own layout: our curves in its panels, and its own curves where they are known.

The paper's curves are laid over ours where they are comparable (:mod:`rmsexp.report.paper.matching`). Otherwise they
have panels of their own, beside or below ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmsexp.records.frames import names, quantities
from rmsexp.records.frames.load import Records
from rmsexp.report.plots import canvas, panels, style
from rmsexp.report.plots.panels import Axis, Chart, Curve, Panel
from rmsexp.report.plots.setting_curves import LEGEND, LIMITS, draw_panel, legend_entries
from rmsexp.rules.quantities import Quantity

FEWEST = 2  # the paper's unit of steps is used if runs have at least so many of them
SMALL_UNIT = 100  # of steps: larger units are written in thousands
SCALE = "paper"  # the scale at which panels may have the paper's ranges


class View(NamedTuple):
    """A panel of a figure of the paper.

    Attributes:
        quantity: what is drawn.
        title: the heading of the panel.
        x: against what.
        per: the number of steps that the paper's axis counts as one, such as 30,000.
        steps: the number of steps that the paper draws; None: all.
        y_range: the paper's range of the y axis, in the unit of the quantity; None: not known.
    """

    quantity: Quantity
    title: str = ""
    x: Axis = "step"
    per: int = 1
    steps: int | None = None
    y_range: tuple[float, float] | None = None


def draw(title: str, lines: Sequence[str], records: Records, rows: Mapping[str, str], views: Sequence[View]) -> Figure:
    """Return a figure of the paper, with a panel per view and, in each, a curve per row.

    Args:
        title: the name of the figure in the paper, such as "Figure 1".
        lines: the caption.
        records: the records of one setting.
        rows: the series of each curve, by its name in the paper and in the paper's order.
        views: the panels.
    """
    ours = [_ours(records, rows, view) for view in views]
    pairs = [(chart, view) for chart, view in zip(ours, views, strict=True)]
    published = [(found, view) for chart, view in pairs if (found := _published(title, records.names[0], chart, view))]
    labels = {series: _label(ours, records, row, series) for row, series in rows.items()}
    handles, texts = legend_entries(labels, [*ours, *(chart for chart, _ in published)])
    columns = max(2, min(len(views), canvas.COLUMNS))
    room = 0.8 + 0.075 * max(map(len, texts))
    figure, grid = canvas.grid(len(ours) + len(published), canvas.PANEL[1], title, lines, columns, room)
    for axes, (chart, view) in zip(grid, pairs, strict=False):
        _draw(axes, chart, list(rows.values()), view.title + " here" * bool(published))
        ends = [curve.mean["mean"].iloc[-1] for curve in chart.panels[view.x].curves]
        set_range(axes, view, records, ends)
    for axes, (chart, view) in zip(grid[len(ours) :], published, strict=True):
        _draw(axes, chart, list(rows.values()), f"{view.title} in the paper, at its own setting")
    grid[min(columns, len(grid)) - 1].legend(handles, texts, bbox_to_anchor=(1.01, 1), **LEGEND)
    return figure


def _ours(records: Records, rows: Mapping[str, str], view: View) -> Chart:
    """Return the chart of a view, with the curves of the rows in their order, and perhaps those of the paper."""
    if view.steps is not None:
        records = Records(records.runs, records.metrics[records.metrics["step"] <= view.steps], records.problems)
    chart = panels.chart(records, view.quantity, LIMITS, [view.x])
    panel = chart.panels[view.x]
    curves = [curve for curve in panel.curves if curve.from_paper]
    curves += [curve for series in rows.values() for curve in panel.curves if curve.series == series and curve.seeds]
    return _in_units(panels.ranged(chart._replace(panels={view.x: panel._replace(curves=curves)})), view)


def _published(source: str, task: str, ours: Chart, view: View) -> Chart | None:
    """Return the chart of the paper's curves in a view; None if they are not known, or are laid over ours already."""
    if any(curve.from_paper for curve in ours.panels[view.x].curves):
        return None
    # the paper has no interim evaluations, which stand for the whole split
    split = names.VALID if view.quantity.split == names.INTERIM else view.quantity.split
    title = quantities.title(replace(view.quantity, split=split))
    for chart in panels.paper_charts(task):
        if (chart.source, chart.title) == (source, title) and view.x in chart.panels:
            return _in_units(chart._replace(panels={view.x: chart.panels[view.x]}), view)
    return None


def _in_units(chart: Chart, view: View) -> Chart:
    """Return the chart with x in the paper's unit of steps, if its curves are long enough."""
    curves = chart.panels[view.x].curves
    longest = max((curve.mean["x"].max() for curve in curves), default=0.0)
    if view.per == 1 or longest < FEWEST * view.per:
        return chart
    unit = f"{view.per / 1000:g}k" if view.per > SMALL_UNIT else f"{view.per}"
    divided = [_divided(curve, view.per) for curve in curves]
    beyond = [point._replace(x=point.x / view.per) for point in chart.panels[view.x].beyond]
    return chart._replace(panels={view.x: Panel(f"step / {unit}", divided, beyond)})


def _divided(curve: Curve, by: int) -> Curve:
    seeds = [seed._replace(x=seed.x / by) for seed in curve.seeds]
    return curve._replace(seeds=seeds, mean=curve.mean.assign(x=curve.mean["x"] / by))


def _label(charts: Sequence[Chart], records: Records, row: str, series: str) -> str:
    """Return the text of a row in the legend: its name, and how many of its seeds are in the means if they differ."""
    runs = int((records.runs["series"] == series).sum())
    means = [_averaged(panel.curves, series) for chart in charts for panel in chart.panels.values()]
    if not runs:
        return f"{row} (no run)"
    counts = " or ".join(map(str, sorted(set(means))))
    return row if set(means) == {runs} else f"{row} ({counts} of {runs} seed{'s' if runs > 1 else ''})"


def _averaged(curves: Sequence[Curve], series: str) -> int:
    return sum(curve.averaged for curve in curves if curve.series == series)


def set_range(axes: Axes, view: View, records: Records, ends: Sequence[float]) -> None:
    """Give the y axis its range in the paper, if all runs are at the paper's scale and the range has all ``ends``.

    ``ends``: the last values of curves, which nobody should miss.
    """
    if view.y_range is not None and records.runs["scale"].eq(SCALE).all():
        low, high = view.y_range
        if all(low <= end <= high for end in ends):
            axes.set_ylim(low, high)


def _draw(axes: Axes, chart: Chart, series: list[str], heading: str) -> None:
    (panel,) = chart.panels.values()
    draw_panel(axes, chart, panel, series)
    axes.set_title(heading.strip(), size=10)
    if not panel.curves:
        axes.text(0.5, 0.5, "nothing recorded yet", transform=axes.transAxes, ha="center", color=style.GREY)
