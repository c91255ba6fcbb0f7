"""The figure of a benchmark of layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from rmsexp.records.frames.benchmarks import Measured, contention
from rmsexp.report.plots import canvas, marks, style
from rmsexp.report.tables import formats

NORMS = {"nn.LayerNorm": "ln", "nn.RMSNorm": "rms"}  # torch's layers have the colours of our norms
PANEL = (3.0, 0.24)  # in inches: the width of a panel, and the height of each layer's line in it


def draw(cases: Sequence[Measured], title: str, lines: Sequence[str]) -> Figure:
    """Return a figure with a panel per case: the ratio of each layer's time to the reference's, with its interval.

    ``cases``: cases with the same layers. ``lines``: the caption.
    """
    layers = [row.layer for row in cases[0].rows]
    columns = min(3, len(cases))
    rows = math.ceil(len(cases) / columns)
    width, height = 2 + PANEL[0] * columns, 1.1 + (0.8 + PANEL[1] * len(layers)) * rows
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", size=14, weight="bold")
    figure.supxlabel("\n".join(canvas.wrapped(lines, width)), x=0.01, ha="left", size=8.5, color="#444444")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
    for axes, case in itertools.zip_longest(grid, cases):
        if case is None:
            axes.remove()
        else:
            _panel(axes, case)
    _shared_axes(figure.axes[0], layers)
    return figure


def _panel(axes: Axes, case: Measured) -> None:
    canvas.add_grid(axes)
    marks.zero_line(axes, 1)
    for line, row in enumerate(case.rows):
        colour = style.colour(NORMS.get(row.layer, row.layer.split()[0]))
        marks.interval(axes, -line, *row.relative, colour)
    reference = case.stored["reference"]
    median = next(row.milliseconds[1] for row in case.rows if row.layer == reference)
    shape = f"{case.stored['shape']}{contention(case.stored)}"
    axes.set_title(f"{shape}\n{reference}: {formats.four_digits(median)} ms", size=10)
    axes.set_xlabel(f"ratio to {reference}")
    axes.tick_params(labelbottom=True)


def _shared_axes(axes: Axes, layers: Sequence[str]) -> None:
    axes.set_yticks([-line for line in range(len(layers))], layers)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.45), max(high, 2.2))  # the axis has at least the ticks 0.5, 1 and 2
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
