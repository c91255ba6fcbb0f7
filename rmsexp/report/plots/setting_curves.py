"""The figures of one setting: each quantity against steps and against time in training, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rmsexp.records.frames import names, statistics
from rmsexp.records.frames.load import Records
from rmsexp.report.plots import canvas, panels, ranges, style
from rmsexp.report.plots.panels import Chart, Setting
from rmsexp.report.plots.ranges import Range
from rmsexp.rules.quantities import Quantity

LEGEND: dict[str, Any] = {"loc": "upper left", "frameon": False, "handlelength": 2.6, "fontsize": 9}
PIXELS = int(canvas.DPI * canvas.PANEL[0])  # width of a panel in a PNG
LABEL = 0.13  # the height of the label of a line, in inches
MOST_LABELS = 20  # more do not fit beside a panel
LONGEST = 18  # characters of a label
STAGGERED = 4  # values at an arrow that stand below each other
TITLE = 410  # the size of a title of an axis times its characters, in points, that fits the height of a panel
LIMITS = panels.Limits(seed=PIXELS // 2, mean=PIXELS)  # a mean keeps its extremes in every two pixels


def save(setting: Setting, quantities: Sequence[Quantity], folder: Path) -> None:
    """Write a figure per quantity, such as ``train_loss``, and ``curves`` with all quantities, each as PNG and SVG."""
    for quantity, chart in zip(quantities, setting.charts, strict=True):
        canvas.write(draw_setting(setting._replace(charts=[chart])), folder / quantity.name)
    canvas.write(draw_setting(setting), folder / "curves")


def draw(records: Records, shown: Sequence[Quantity]) -> Figure:
    """Return the figure of :func:`draw_setting` for these quantities of the records of one setting."""
    return draw_setting(panels.setting(records, shown, LIMITS))


def draw_setting(setting: Setting) -> Figure:
    """Return a figure with a row of two panels per quantity, a caption above them and a legend to the right of them.

    The legend counts the seeds in the means. If these numbers differ between quantities, each row has a legend.
    """
    counted = [
        [f"{names.label(name)} ({panels.seeds(chart, name, runs)})" for name, runs in setting.runs.items()]
        for chart in setting.charts
    ]
    legends = counted if any(labels != counted[0] for labels in counted) else counted[:1]
    figure, rows = _layout(setting, legends)
    for chart, row in zip(setting.charts, rows, strict=True):
        for axes, panel in zip(row, chart.panels.values(), strict=True):
            draw_panel(axes, chart, panel, list(setting.runs))
            ours = [curve for curve in panel.curves if not curve.from_paper]
            if 1 < len(ours) <= MOST_LABELS:
                _label_ends(axes, ours)
            if not panel.curves:
                axes.text(0.5, 0.5, "nothing recorded yet", transform=axes.transAxes, ha="center", color=style.GREY)
    return figure


def _layout(setting: Setting, legends: list[list[str]]) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure with caption and legends, and the two panels of each row.

    Positions are computed in inches, which is much faster than a layout engine.

    Args:
        setting: the charts of the rows.
        legends: the texts of all series, in the legend of each row or, if it is the same for all rows, of the first.
    """
    rows, series = len(setting.charts), list(setting.runs)
    labels = labels_width(series)
    legend = 0.7 + 0.075 * max(len(text) for texts in legends for text in texts)
    step = canvas.PANEL[0] + canvas.GAP[0] + labels
    width = 2 * step + 0.2 + legend
    lines = canvas.wrapped([setting.caption, _reading(setting.charts)], width)
    top = 0.75 + canvas.LINE * len(lines)
    row_height = canvas.PANEL[1] + canvas.GAP[1]
    entries = canvas.ENTRY * (len(legends[0]) + 4)  # a legend may be taller than the rows that it is for
    if len(legends) > 1:
        row_height = max(row_height, entries)
    height = top + max(rows * row_height, entries)
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    canvas.heading(figure, setting.title, lines)
    size = canvas.PANEL[0] / width, canvas.PANEL[1] / height
    lefts = [(canvas.GAP[0] + column * step) / width for column in range(2)]
    bottoms = [1 - (top + row * row_height + canvas.PANEL[1]) / height for row in range(rows)]
    for row, texts in enumerate(legends):
        handles = legend_entries(dict(zip(series, texts, strict=True)), setting.charts)
        corner = (1 - legend / width, 1 - (top + row * row_height) / height)
        figure.legend(*handles, bbox_to_anchor=corner, borderaxespad=0, **LEGEND)
    return figure, [[figure.add_axes((left, bottom, *size)) for left in lefts] for bottom in bottoms]


def _reading(charts: Sequence[Chart]) -> str:
    """Return how to read the lines of the charts."""
    curves = [curve for chart in charts for panel in chart.panels.values() for curve in panel.curves]
    parts = ["thin: one seed; thick: mean over seeds, which ends where fewer than half of them have values"]
    parts += [f"band: {statistics.CONFIDENCE:.0%} t-interval of the mean"] * any(curve.has_band for curve in curves)
    beyond = any(panel.beyond for chart in charts for panel in chart.panels.values())
    return "; ".join(parts + ["arrow: the value furthest beyond the axis"] * beyond)


def legend_entries(labels: Mapping[str, str], charts: Iterable[Chart]) -> tuple[list[Line2D], list[str]]:
    """Return the handles and the texts of a legend: of the series, and of the dashes and crosses in the charts.

    ``labels``: the text of each series.
    """
    handles, texts = [], [*labels.values()]
    curves = [curve for chart in charts for panel in chart.panels.values() for curve in panel.curves]
    for name in labels:
        look: dict[str, Any] = {"linestyle": style.dash_of(name, list(labels)), "linewidth": style.THICK}
        handles.append(Line2D([], [], marker=style.marker(names.norm_of(name)), **_paint(name), **look))
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
    for place, curve in enumerate(panel.curves):
        if curve.from_paper:
            _draw_paper_curve(axes, curve)
        else:
            _draw_curve(axes, curve, style.dash_of(curve.series, series), place, chart.limits)
    axes.set_xlabel(panel.x_title)
    axes.set_ylabel(chart.title, size=min(10.0, TITLE / len(chart.title)))
    if chart.limits.log:
        axes.set_yscale("log")
    else:
        axes.locator_params(axis="y", nbins=5)
    axes.locator_params(axis="x", nbins=5)
    if panel.x_title == "step":
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.set_ylim(chart.limits.low, chart.limits.high)
    canvas.add_grid(axes)
    _draw_beyond(axes, panel)


def _paint(series: str) -> dict[str, Any]:
    """Return the colour of a series, and the size of its markers, for matplotlib."""
    return {"color": style.colour(names.norm_of(series)), "markersize": 6, "markeredgewidth": 0}


def _draw_curve(axes: Axes, curve: panels.Curve, dash: style.Dash, place: int, limits: Range) -> None:
    """Draw a thin line per seed, a cross where a diverged seed ends, and the thick mean with its band, if any.

    ``place``: the number of the curve in its panel.
    """
    paint, marker, mean = _paint(curve.series), style.marker(names.norm_of(curve.series)), curve.mean
    _draw_seeds(axes, curve, dash)
    for seed in curve.seeds:
        if len(seed.x) == 1:
            axes.plot(seed.x, seed.y, linestyle="", marker=marker, alpha=style.FAINT, **paint)
        if seed.diverged:
            end = np.clip(seed.y[-1:], limits.low, limits.high)
            cross: dict[str, Any] = {"marker": "x", "markersize": 8, "markeredgewidth": 2, "clip_on": False}
            axes.plot(seed.x[-1:], end, zorder=3, **paint | cross)
    thick: dict[str, Any] = {"linestyle": curve.dash or dash, "linewidth": style.THICK, "marker": marker}
    axes.plot(mean["x"], mean["mean"], markevery=style.marked(len(mean), place), **paint, **thick)
    if curve.has_band:
        axes.fill_between(mean["x"], mean["low"], mean["high"], color=paint["color"], alpha=0.15, linewidth=0)


def _draw_seeds(axes: Axes, curve: panels.Curve, dash: style.Dash) -> None:
    """Draw the thin lines of the seeds. A collection is built and drawn faster than hundreds of separate lines."""
    lines = [np.column_stack([seed.x, seed.y]) for seed in curve.seeds]
    look: dict[str, Any] = {"linewidths": style.THIN, "alpha": style.FAINT, "joinstyle": "round", "zorder": 2}
    colour, dashes = _paint(curve.series)["color"], [seed.dash or dash for seed in curve.seeds]
    axes.add_collection(LineCollection(lines, colors=colour, linestyles=dashes, **look))


def _draw_beyond(axes: Axes, panel: panels.Panel) -> None:
    """Draw an arrow with the value at the edge of the panel where a curve is furthest beyond it."""
    low, high = axes.get_ylim()
    for row, point in enumerate(panel.beyond):
        arrow, edge, side = ("\u2191", high, -1) if point.above else ("\u2193", low, 1)
        layout: dict[str, Any] = {"textcoords": "offset points", "size": 8, "ha": "center", "parse_math": False}
        column, line = divmod(row, STAGGERED)  # the values of several curves at the same x stand beside each other
        height = side * (5 + 9 * line)
        axes.annotate(
            f"{arrow}{point.y:.3g}",
            (point.x, edge),
            (8 + 32 * column, height),
            color=style.colour(names.norm_of(point.series)),
            va="top" if point.above else "bottom",
            weight="bold",
            **layout,
        )


def labels_width(series: Sequence[str]) -> float:
    """Return the width of the labels at the ends of lines, in inches."""
    return 0.2 + 0.062 * max((len(_short(name)) for name in series), default=0)


def _short(series: str) -> str:
    """Return the label of a series, with "fused" in place of "impl=fused", shortened to ``LONGEST``."""
    label = names.label(names.without_impl(series)) + " fused" * ("impl=fused" in series)
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}\u2026"


def _label_ends(axes: Axes, shown: Sequence[panels.Curve]) -> None:
    """Write the name of each curve to the right of the panel, at the height of its end."""
    ends = axes.transData.transform([(0, curve.mean["mean"].iloc[-1]) for curve in shown])[:, 1]
    heights = axes.transAxes.inverted().transform([(0, end) for end in ends])[:, 1]
    gap = LABEL / canvas.PANEL[1]
    for curve, height in zip(shown, ranges.spread(np.clip(heights, 0, 1).tolist(), gap, 0, 1), strict=True):
        look: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
        end = (float(curve.mean["x"].iloc[-1]), float(curve.mean["mean"].iloc[-1]))
        leader: dict[str, Any] = {"arrowstyle": "-", "color": _paint(curve.series)["color"], "lw": 0.6, "ls": ":"}
        axes.annotate("", (1.01, height), end, "axes fraction", "data", leader, annotation_clip=False)
        axes.plot([1.02], [height], style.marker(names.norm_of(curve.series)), **_paint(curve.series), **look)
        axes.text(1.045, height, _short(curve.series), size=8, va="center", parse_math=False, **look)


def _draw_paper_curve(axes: Axes, curve: panels.Curve) -> None:
    label = f"{names.label(curve.series)} (paper)"
    look: dict[str, Any] = {"color": style.colour(curve.series), "linestyle": curve.dash, "linewidth": 1.2}
    axes.plot(curve.mean["x"], curve.mean["mean"], label=label, **look)
