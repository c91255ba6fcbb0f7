"""What a benchmark of layers (``python -m rmsexp.bench``) found, as tables and figures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from rmsexp.compare.plots import canvas, marks, style
from rmsexp.compare.records import benchmarks
from rmsexp.compare.tables import formats

ALIKE = {"nn.LayerNorm": "ln", "nn.RMSNorm": "rms"}  # torch's layers have the colours of ours
PANEL = (3.0, 0.24)  # inches: a panel's width, and the height of a line


def draw(found: Sequence[benchmarks.Measured], title: str, lines: Sequence[str]) -> Figure:
    """A panel a shape: the ratio of each layer to the reference, with its interval."""
    names = [row.layer for row in found[0].rows]
    across = min(3, len(found))
    down = math.ceil(len(found) / across)
    width, height = 2 + PANEL[0] * across, 1.1 + (0.8 + PANEL[1] * len(names)) * down
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", size=14, weight="bold")
    figure.supxlabel("\n".join(canvas.wrapped(lines, width)), x=0.01, ha="left", size=8.5, color="#444444")
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat
    for axes, one in itertools.zip_longest(grid, found):
        if one is None:
            axes.remove()
            continue
        canvas.plain(axes)
        axes.axvline(1, color="#777777", linewidth=0.8)
        for place, row in enumerate(one.rows):
            colour = style.colour(ALIKE.get(row.layer, row.layer.split()[0]))
            marks.mark(axes, -place, row.relative.ratio, row.relative.low, row.relative.high, colour)
        reference = one.stored["reference"]
        of_reference = next(row.milliseconds[1] for row in one.rows if row.layer == reference)
        shown = f"{reference}: {formats.four_digits(of_reference)} ms"
        axes.set_title(f"{one.stored['shape']}{benchmarks.state(one.stored)}\n{shown}", size=10)
        axes.set_xlabel(f"ratio to {reference}")
        axes.tick_params(labelbottom=True)
    axes = figure.axes[0]
    axes.set_yticks([-place for place in range(len(names))], names)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.45), max(high, 2.2))  # so that the axis has at least the ticks 0.5, 1 and 2
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    return figure
