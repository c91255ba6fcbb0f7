"""The figures of one setting: each quantity against steps and against time in training, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rmsexp.compare.plots import canvas, panels, style
from rmsexp.compare.plots.panels import Chart
from rmsexp.compare.records import names, quantities, statistics
from rmsexp.compare.records.caveats import caveats
from rmsexp.compare.records.load import Records
from rmsexp.rules.quantities import Quantity

LEGEND: dict[str, Any] = {"loc": "upper left", "frameon": False, "handlelength": 2.6, "fontsize": 9}
PIXELS = int(canvas.DPI * canvas.PANEL[0])  # width of a panel in a PNG
LIMITS = panels.Limits(seed=PIXELS // 2, mean=PIXELS)  # a mean keeps its extremes in every two pixels


def save(records: Records, folder: Path) -> None:
    """Write a figure per quantity, such as ``train_loss``, and ``curves`` with all quantities, each as PNG and SVG."""
    recorded = quantities.recorded(records)
    charts = [panels.chart(records, quantity, LIMITS) for quantity in recorded]
    for quantity, chart in zip(recorded, charts, strict=True):
        canvas.write(_draw(records, [chart]), folder / quantity.name)
    canvas.write(_draw(records, charts), folder / "curves")


def draw(records: Records, shown: Sequence[Quantity]) -> Figure:
    """Return a figure with a row of two panels per quantity, a caption above them and a legend to the right of them.

    The legend counts the seeds in the means. If these numbers differ between quantities, each row has a legend.
    """
    return _draw(records, [panels.chart(records, quantity, LIMITS) for quantity in shown])


def _draw(records: Records, charts: list[Chart]) -> Figure:
    series = names.in_order(records.runs["series"])
    runs = records.runs["series"].value_counts()
    counted = [
        [f"{names.label(name)} ({panels.seeds(chart, name, runs[name])})" for name in series] for chart in charts
    ]
    legends = counted if any(labels != counted[0] for labels in counted) else counted[:1]
    figure, rows = _layout(records, charts, legends)
    for chart, row in zip(charts, rows, strict=True):
        for axes, panel in zip(row, chart.panels.values(), strict=True):
            draw_panel(axes, chart, panel, series)
            if not panel.curves:
                axes.text(0.5, 0.5, "nothing recorded yet", transform=axes.transAxes, ha="center", color=style.GREY)
    return figure


def _layout(records: Records, charts: list[Chart], legends: list[list[str]]) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure with caption and legends, and the two panels of each row.

    Positions are computed in inches, which is much faster than a layout engine.

    Args:
        records: the records of the setting.
        charts: the chart of each row.
        legends: the texts of all series, in the legend of each row or, if it is the same for all rows, of the first.
    """
    rows, series = len(charts), names.in_order(records.runs["series"])
    legend = 0.7 + 0.075 * max(len(text) for labels in legends for text in labels)
    width = 2 * (canvas.GAP[0] + canvas.PANEL[0]) + 0.2 + legend
    lines = canvas.wrapped(_caption(records), width)
    top = 0.75 + canvas.LINE * len(lines)
    row_height = canvas.PANEL[1] + canvas.GAP[1]
    entries = canvas.ENTRY * (len(legends[0]) + 2)  # a legend may be taller than the rows that it is for
    if len(legends) > 1:
        row_height = max(row_height, entries)
    height = top + max(rows * row_height, entries)
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    canvas.heading(figure, ", ".join(records.names), lines)
    size = canvas.PANEL[0] / width, canvas.PANEL[1] / height
    lefts = [(canvas.GAP[0] + column * (canvas.PANEL[0] + canvas.GAP[0])) / width for column in range(2)]
    bottoms = [1 - (top + row * row_height + canvas.PANEL[1]) / height for row in range(rows)]
    for row, labels in enumerate(legends):
        handles = legend_entries(dict(zip(series, labels, strict=True)), charts)
        corner = (1 - legend / width, 1 - (top + row * row_height) / height)
        figure.legend(*handles, bbox_to_anchor=corner, borderaxespad=0, **LEGEND)
    return figure, [[figure.add_axes((left, bottom, *size)) for left in lefts] for bottom in bottoms]


def _caption(records: Records) -> list[str]:
    seeds = records.runs.groupby("series").size().max()
    band = f"; band: {statistics.CONFIDENCE:.0%} t-interval of the mean (from 3 seeds on)" if seeds > 2 else ""
    return [
        *caveats(records),
        f"thin: one seed; thick: mean over the seeds counted in the legend, up to where the shortest ends{band}",
    ]


def legend_entries(labels: Mapping[str, str], charts: Iterable[Chart]) -> tuple[list[Line2D], list[str]]:
    """Return the handles and the texts of a legend: of the series, and of the dashes and crosses in the charts.

    ``labels``: the text of each series.
    """
    handles, texts = [], [*labels.values()]
    curves = [curve for chart in charts for panel in chart.panels.values() for curve in panel.curves]
    for name in labels:
        dash = style.dash_of(name, list(labels))
        colour = style.colour(names.norm_of(name))
        handles.append(Line2D([], [], color=colour, linestyle=dash, linewidth=style.THICK))
    if any(seed.time_excluded for curve in curves for seed in curve.seeds):
        handles.append(Line2D([], [], color="black", linestyle=style.TIME_EXCLUDED))
        texts.append("time excluded")
    if any(seed.diverged for curve in curves for seed in curve.seeds):
        handles.append(Line2D([], [], color="black", linestyle="none", marker="x"))
        texts.append("diverged")
    if any(curve.from_paper for curve in curves):
        handles.append(Line2D([], [], color="black", linestyle=style.PAPER))
        texts.append("paper, in the norm's colour")
    return handles, texts


def draw_panel(axes: Axes, chart: Chart, panel: panels.Panel, series: list[str]) -> None:
    """Draw one panel of a chart. ``series``: all series of the figure, which determine the dashes of each."""
    for curve in panel.curves:
        if curve.from_paper:
            _draw_paper_curve(axes, curve)
        else:
            _draw_curve(axes, curve, style.dash_of(curve.series, series))
    axes.set_xlabel(panel.x_title)
    axes.set_ylabel(chart.title)
    axes.locator_params(nbins=5)
    canvas.add_grid(axes)
    if chart.log:
        axes.set_yscale("log")


def _draw_curve(axes: Axes, curve: panels.Curve, dash: style.Dash) -> None:
    """Draw a thin line per seed, a cross where a diverged seed ends, and the thick mean with its band, if any."""
    colour, mean = style.colour(names.norm_of(curve.series)), curve.mean
    for seed in curve.seeds:
        thin: dict[str, Any] = {"linestyle": seed.dash or dash, "linewidth": style.THIN, "marker": _marker(seed.x)}
        axes.plot(seed.x, seed.y, color=colour, alpha=0.5, **thin)
        if seed.diverged:
            axes.plot(seed.x[-1:], seed.y[-1:], color=colour, marker="x", markersize=8, markeredgewidth=2, zorder=3)
    thick: dict[str, Any] = {"linestyle": curve.dash or dash, "linewidth": style.THICK, "marker": _marker(mean["x"])}
    axes.plot(mean["x"], mean["mean"], color=colour, **thick)
    if curve.has_band:
        axes.fill_between(mean["x"], mean["low"], mean["high"], color=colour, alpha=0.15, linewidth=0)


def _marker(x: Sized) -> str:
    """Return the marker of a curve's points: a dot if there is only one, because a line would not show it."""
    return "o" if len(x) == 1 else ""


def _draw_paper_curve(axes: Axes, curve: panels.Curve) -> None:
    label = f"{names.label(curve.series)} (paper)"
    look: dict[str, Any] = {"color": style.colour(curve.series), "linestyle": curve.dash, "linewidth": 1.2}
    axes.plot(curve.mean["x"], curve.mean["mean"], label=label, **look)
