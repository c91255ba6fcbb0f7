"""The matplotlib figures of campaigns, from the panels of :mod:`rmsexp.report.plots.verdict_panels`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator

from rmsexp.records.frames import names
from rmsexp.report.plots import canvas, marks, style
from rmsexp.report.plots.verdict_panels import GAP, Marks, Panel

LEGEND = 22  # characters in a line of the legend
TITLE = 60  # characters in a line of the title of a panel
LINE_HEIGHT = 0.5  # inches per line of a panel whose y axis counts lines of text
LOOKS: dict[str, dict[str, Any]] = {
    "points": {"linestyle": "", "markersize": 5, "alpha": 0.6},
    "chosen": {"marker": "o", "linestyle": "", "markersize": 12, "fillstyle": "none", "markeredgewidth": 1.6},
    "cross": {"marker": "x", "linestyle": "", "markersize": 8, "markeredgewidth": 2, "clip_on": False},
    "line": {"linewidth": style.THICK, "markersize": 6},
    "left": {"marker": "<", "linestyle": "", "markersize": 8, "clip_on": False},
    "right": {"marker": ">", "linestyle": "", "markersize": 8, "clip_on": False},
}


def draw(panels: Sequence[Panel], title: str, lines: Sequence[str]) -> Figure:
    """Return a figure with these panels, a legend of the norms, and ``lines`` as its caption.

    Panels without ``y_title`` have a height in proportion to the length of their y axis.
    """
    extent = max(panel.y_range[1] - panel.y_range[0] for panel in panels)
    height = canvas.PANEL[1] if panels[0].y_title else LINE_HEIGHT * extent
    figure, grid = canvas.grid(len(panels), height, title, lines)
    norms = names.in_order(entry.norm for panel in panels for entry in panel.marks)
    for axes, panel in zip(grid, panels, strict=True):
        _panel(axes, panel, norms)
        if not panel.y_title:
            axes.set_ylim(panel.y_range[1] - extent, panel.y_range[1])
    handles = [Line2D([], [], linewidth=style.THICK, **_look(norm, norms)) for norm in norms]
    if panels[0].y_title:
        labels = [textwrap.fill(names.label(norm), LEGEND) for norm in norms]
        last = grid[min(len(grid), canvas.COLUMNS) - 1]
        last.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    return figure


def _look(norm: str, norms: list[str]) -> dict[str, Any]:
    return {
        "color": style.colour(names.norm_of(norm)),
        "marker": style.marker(names.norm_of(norm)),
        "linestyle": style.dash_of(norm, norms),
    }


def _panel(axes: Axes, panel: Panel, norms: list[str]) -> None:
    axes.set_title("\n".join(textwrap.wrap(panel.title, TITLE)), size=10, loc="left")
    axes.set_xlabel(panel.x_title)
    axes.set_ylabel(panel.y_title)
    if panel.ticks:
        axes.set_xscale("log", base=2)
        axes.set_xticks(panel.ticks, [f"{tick:g}" for tick in panel.ticks], size=8)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.locator_params(axis="x", nbins=6)
    axes.set_xlim(panel.x_range)
    axes.set_ylim(panel.y_range)
    if not panel.y_title:
        axes.set_yticks([])
    if panel.zero:
        marks.zero_line(axes)
    for band in panel.bands:
        height = [band.y - GAP / 2, band.y + GAP / 2]
        axes.fill_betweenx(height, band.low, band.high, color=style.GREY, alpha=0.25, linewidth=0)
    for text in panel.texts:
        layout: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "top", "parse_math": False}
        axes.text(0.015, text.y, "\n".join(text.lines), size=8, **layout)
    for entry in panel.marks:
        _marks(axes, entry, _look(entry.norm, norms))


def _marks(axes: Axes, entry: Marks, look: dict[str, Any]) -> None:
    if entry.kind != "interval":
        marked = style.marked(len(entry.x), 0) if entry.kind == "line" else None
        axes.plot(entry.x, entry.y, **(look | {"markevery": marked} | LOOKS[entry.kind]))
        if entry.low:
            axes.fill_between(entry.x, entry.low, entry.high, color=look["color"], alpha=0.15, linewidth=0)
        return
    for x, y, low, high in zip(entry.x, entry.y, entry.low, entry.high, strict=True):
        marks.interval(axes, y, x, low, high, look["color"], look["marker"])
