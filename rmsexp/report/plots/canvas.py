"""Figures with a heading and axes of fixed size, and their files. All sizes are in inches."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter
from PIL import Image

from rmsexp.system import atomic

DPI = 150
COMPRESSION = 3  # of PNG files: from 1, fast, to 9
PANEL = (4.3, 3.1)  # width and height of the axes
GAP = (0.8, 0.65)  # space to the left of and below each panel, for tick labels and axis titles
COLUMNS, TITLE, LEGEND = 3, 0.3, 2.2  # of a grid: panels side by side, and space above panels and for the legend
LINE, ENTRY = 0.165, 0.21  # heights of a line of the caption and of an entry of the legend
# Text in SVG files is stored as text, and drawing the same records twice gives identical files.
SVG: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "rmsexp"}


def write(figure: Figure, path: Path, suffixes: Sequence[str] = ("png", "svg")) -> None:
    """Write the figure as ``<path>.png`` and ``<path>.svg``, or with one of these ``suffixes`` alone."""
    _without_formulas(figure)
    for suffix in suffixes:
        content = _png(figure) if suffix == "png" else _svg(figure)
        atomic.write_atomic(path.with_name(f"{path.name}.{suffix}"), content)


def _without_formulas(figure: Figure) -> None:
    """Make dollar signs in texts from records appear as they are. Matplotlib's own powers at ticks stay formulas."""
    all_axes = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    with_powers = [axis for axis in all_axes if isinstance(axis.get_major_formatter(), LogFormatter)]
    powers = {id(text) for axis in with_powers for text in axis.findobj(Text) if text is not axis.label}
    for text in figure.findobj(Text):
        if isinstance(text, Text) and id(text) not in powers:
            text.set_parse_math(False)


def _png(figure: Figure) -> bytes:
    """Return a PNG without transparency, which takes half the time of ``savefig`` to compress, for the same size."""
    figure.set_dpi(DPI)
    drawn = FigureCanvasAgg(figure)
    drawn.draw()
    buffer = BytesIO()
    pixels = np.asarray(drawn.buffer_rgba())[..., :3]
    Image.fromarray(pixels).save(buffer, "png", compress_level=COMPRESSION, dpi=(DPI, DPI))
    return buffer.getvalue()


def _svg(figure: Figure) -> bytes:
    buffer = BytesIO()
    with matplotlib.rc_context(SVG):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def row(panels: int, title: str, lines: Sequence[str] = ()) -> tuple[Figure, list[Axes]]:
    """Return a figure with a title, the ``lines`` of a caption and, below them, panels side by side; and the panels."""
    lefts = [GAP[0] + column * (PANEL[0] + GAP[0]) for column in range(panels)]
    return _figure(lefts, PANEL, lefts[-1] + PANEL[0] + 0.2, title, lines)


def bars(labels: Sequence[str], title: str, lines: Sequence[str] = (), legend: int = 0) -> tuple[Figure, Axes]:
    """Return a figure with one panel, and this panel, whose y axis has a tick at 0, 1, … for each label.

    There is room for the labels on the left, and on the right for a legend of ``legend`` lines of text.
    """
    left, width = 0.5 + 0.085 * max(map(len, labels)), 1.4 * PANEL[0]
    size = (width, max(0.3 + 0.4 * len(labels), ENTRY * legend))
    figure, (axes,) = _figure([left], size, left + width + LEGEND + 0.2, title, lines)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(-0.6, len(labels) - 0.4)
    return figure, axes


def grid(
    panels: int,
    height: float,
    title: str,
    lines: Sequence[str] = (),
    columns: int = COLUMNS,
    legend: float = LEGEND,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels of this height, which have room for titles, and these panels.

    ``columns``: the number of panels side by side. ``legend``: the width of the space to the right of them.
    """
    lefts = [GAP[0] + column * (PANEL[0] + GAP[0]) for column in range(min(panels, columns))]
    rows = -(-panels // columns)
    width = lefts[-1] + PANEL[0] + legend
    figure, axes = _figure(lefts, (PANEL[0], height), width, title, lines, rows, above=TITLE)
    for unused in axes[panels:]:
        unused.remove()
    return figure, axes[:panels]


def _figure(
    lefts: list[float],
    size: tuple[float, float],
    width: float,
    title: str,
    lines: Sequence[str],
    rows: int = 1,
    above: float = 0,
) -> tuple[Figure, list[Axes]]:
    """Return a figure of this width and its panels, row by row.

    Args:
        lefts: the left edges of the panels of a row.
        size: the size of each panel.
        width: the width of the figure.
        title, lines: its title, and the lines of its caption.
        rows: the number of rows.
        above: the space above each row, besides ``GAP``.
    """
    caption = wrapped(lines, width)
    row_height = above + size[1] + GAP[1]
    height = 0.65 + LINE * len(caption) + rows * row_height
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    heading(figure, title, caption)
    bottoms = [(GAP[1] + row * row_height) / height for row in reversed(range(rows))]
    extent = size[0] / width, size[1] / height
    panels = [figure.add_axes((left / width, bottom, *extent)) for bottom in bottoms for left in lefts]
    for axes in panels:
        add_grid(axes)
    return figure, panels


def add_grid(axes: Axes) -> None:
    """Draw a light grid, and hide the upper and the right spine."""
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def wrapped(lines: Sequence[str], width: float) -> list[str]:
    """Return the lines of a caption, wrapped to fit a figure of this width in inches."""
    return [part for line in lines for part in textwrap.wrap(line, int(width * 14), subsequent_indent="   ")]


def heading(figure: Figure, title: str, lines: Sequence[str]) -> None:
    """Draw the title and, below it, the caption at the top of a figure. ``lines``: the caption, already wrapped."""
    width, height = figure.get_size_inches()
    # captions may quote error messages with dollar signs, which are no formula
    layout: dict[str, Any] = {"x": 0.2 / width, "va": "top", "parse_math": False}
    size = min(14, 104 * (width - 0.4) / len(title))  # smaller for settings with long names
    figure.text(y=1 - 0.2 / height, s=title, size=size, weight="bold", **layout)
    figure.text(y=1 - 0.52 / height, s="\n".join(lines), size=8.5, color="#444444", linespacing=1.35, **layout)
