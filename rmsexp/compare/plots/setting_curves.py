"""Curves of one setting: each quantity against steps and, beside it, against time in training.

Thin lines are seeds, the thick line is the mean of those that neither diverged nor failed. Figures are drawn on
matplotlib's objects, without pyplot: nothing global, no display.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rmsexp.compare.paper import matching
from rmsexp.compare.plots import canvas, panels, paper_curves, style
from rmsexp.compare.records import names, statistics
from rmsexp.compare.records.caveats import caveats
from rmsexp.compare.records.load import Records


def save(records: Records, folder: Path) -> None:
    """One figure a quantity, and ``curves`` with all of them, each as PNG and SVG."""
    wanted = panels.quantities(records)
    prepared = {one: panels.panels(records, one) for one in wanted}
    for name, shown in {**{one.name: [one] for one in wanted}, "curves": wanted}.items():
        canvas.write(_draw(records, {one: prepared[one] for one in shown}), folder / name)


def draw(records: Records, shown: list[panels.Quantity]) -> Figure:
    """One row of two panels a quantity, the notes above, the legend to the right; nothing lies over a curve."""
    return _draw(records, {one: panels.panels(records, one) for one in shown})


def _draw(records: Records, shown: dict[panels.Quantity, panels.Panels]) -> Figure:
    figure, axes = _layout(records, len(shown))
    for (quantity, row), axes_row in zip(shown.items(), axes, strict=True):
        for panel_axes, panel in zip(axes_row, row, strict=True):
            _panel(panel_axes, records, quantity, panel)
    return figure


def _layout(records: Records, rows: int) -> tuple[Figure, list[list[Axes]]]:
    """Everything is placed in inches, which is exact and much quicker than a layout engine."""
    series = names.in_order(records.runs["series"])
    legend = 1.4 + 0.075 * max(len(names.label(one)) for one in series)
    width = 2 * (canvas.GAP[0] + canvas.PANEL[0]) + 0.2 + legend
    lines = canvas.wrapped(_caption(records), width)
    top = 0.75 + canvas.LINE * len(lines)
    height = top + max(
        rows * (canvas.PANEL[1] + canvas.GAP[1]), canvas.ENTRY * (len(series) + 2)
    )  # the legend may be the taller
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    run = records.runs.iloc[0]
    canvas.heading(figure, f"{run['task']}, {run['setting']}", lines)
    size = canvas.PANEL[0] / width, canvas.PANEL[1] / height
    lefts = [(canvas.GAP[0] + column * (canvas.PANEL[0] + canvas.GAP[0])) / width for column in range(2)]
    bottoms = [1 - (top + row * (canvas.PANEL[1] + canvas.GAP[1]) + canvas.PANEL[1]) / height for row in range(rows)]
    _legend(figure, records, series, (1 - legend / width, 1 - top / height))
    return figure, [[figure.add_axes((left, bottom, *size)) for left in lefts] for bottom in bottoms]


def _caption(records: Records) -> list[str]:
    seeds = records.runs.groupby("series").size().max()
    band = f"; band: {statistics.CONFIDENCE:.0%} t-interval of the mean (from 3 seeds on)" if seeds > 2 else ""
    return [*caveats(records), f"thin: one seed; thick: mean over seeds, as far as all of them go{band}"]


def _legend(figure: Figure, records: Records, series: list[str], corner: tuple[float, float]) -> None:
    seeds = records.runs["series"].value_counts()
    handles, labels = [], []
    for one in series:
        colour, dashes = style.colour(names.norm_of(one)), style.dash_of(one, series)
        handles.append(Line2D([], [], color=colour, linestyle=dashes, linewidth=style.THICK))
        labels.append(f"{names.label(one)} ({seeds[one]} seed{'s' if seeds[one] > 1 else ''})")
    if (records.runs["time_state"] != "clear").any():
        handles.append(Line2D([], [], color="black", linestyle=style.UNCOUNTED))
        labels.append("time not counted")
    if (records.runs["status"] == "diverged").any():
        handles.append(Line2D([], [], color="black", linestyle="none", marker="x"))
        labels.append("diverged")
    if not matching.curves_beside(records).empty:
        handles.append(Line2D([], [], color="black", linestyle=style.PUBLISHED))
        labels.append("the paper's, by its norm's colour")
    layout: dict[str, Any] = {"loc": "upper left", "frameon": False, "borderaxespad": 0, "handlelength": 2.6}
    figure.legend(handles, labels, bbox_to_anchor=corner, fontsize=9, **layout)


def _panel(axes: Axes, records: Records, quantity: panels.Quantity, panel: panels.Panel) -> None:
    everyone = names.in_order(records.runs["series"])
    if not panel.timed and (quantity.split, quantity.metric) == ("train", "loss"):
        paper_curves.published_lines(axes, matching.curves_beside(records))
    for curve in panel.curves:
        _lines(axes, curve, style.dash_of(curve.series, everyone))
    axes.set_xlabel(panel.title)
    axes.set_ylabel(quantity.title)
    axes.locator_params(nbins=5)
    canvas.plain(axes)
    if panel.log:
        axes.set_yscale("log")
    if not panel.curves:
        axes.text(0.5, 0.5, "nothing recorded yet", transform=axes.transAxes, ha="center", color="#777777")


def _lines(axes: Axes, curve: panels.Curve, dash: style.Dash) -> None:
    """Thin lines, a cross where one diverged, the thick mean, and its band where it has one."""
    colour, mean = style.colour(names.norm_of(curve.series)), curve.mean
    for seed in curve.seeds:
        thin = style.UNCOUNTED if seed.uncounted else dash
        axes.plot(seed.x, seed.y, color=colour, linestyle=thin, linewidth=style.THIN, alpha=0.5)
        if seed.diverged:
            axes.plot(seed.x[-1:], seed.y[-1:], color=colour, marker="x", markersize=8, markeredgewidth=2, zorder=3)
    thick = style.UNCOUNTED if curve.uncounted else dash
    axes.plot(mean["x"], mean["mean"], color=colour, linestyle=thick, linewidth=style.THICK)
    if mean["low"].notna().any():
        axes.fill_between(mean["x"], mean["low"], mean["high"], color=colour, alpha=0.15, linewidth=0)
