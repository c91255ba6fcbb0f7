"""Curves of one setting: each quantity against steps and, beside it, against time in training.

Thin lines are seeds, the thick line is the mean of those that neither diverged nor failed. Figures are drawn on
matplotlib's objects, without pyplot: nothing global, no display.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rmsexp import record

DPI = 150
PANEL = (4.3, 3.1)  # inches, of the axes alone
GAP = (0.8, 0.65)  # inches between them, for tick labels and axis titles
LINE, ENTRY = 0.165, 0.21  # inches, heights of a line of the notes and of an entry of the legend
# Text stays text, and the same records give the same file.
SVG: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "rmsexp"}


def write(figure: Figure, path: Path) -> None:
    """The figure as ``<path>.png`` and ``<path>.svg``."""
    for suffix in ("png", "svg"):
        buffer = BytesIO()
        with matplotlib.rc_context(SVG):
            figure.savefig(buffer, format=suffix, dpi=DPI, metadata={"Date": None} if suffix == "svg" else None)
        record.write_atomic(path.with_name(f"{path.name}.{suffix}"), buffer.getvalue())


def row(panels: int, title: str, lines: Sequence[str] = ()) -> tuple[Figure, list[Axes]]:
    """A figure of panels side by side below a title and notes."""
    lefts = [GAP[0] + column * (PANEL[0] + GAP[0]) for column in range(panels)]
    return _placed(lefts, PANEL, lefts[-1] + PANEL[0] + 0.2, title, lines)


def bars(names: Sequence[str], title: str, lines: Sequence[str] = ()) -> tuple[Figure, Axes]:
    """A figure of one panel with a line for each name, room for the names and, to the right, for a legend."""
    left, width, legend = 0.5 + 0.085 * max(map(len, names)), 1.4 * PANEL[0], 2.4
    figure, (axes,) = _placed([left], (width, 0.3 + 0.4 * len(names)), left + width + legend, title, lines)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    return figure, axes


def _placed(
    lefts: list[float], size: tuple[float, float], width: float, title: str, lines: Sequence[str]
) -> tuple[Figure, list[Axes]]:
    """Panels of one size (inches) at these places from the left, in a figure of this width below its heading."""
    noted = wrapped(lines, width)
    height = 0.65 + LINE * len(noted) + size[1] + GAP[1]
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    heading(figure, title, noted)
    at = GAP[1] / height, size[0] / width, size[1] / height
    axes = [figure.add_axes((left / width, *at)) for left in lefts]
    for one in axes:
        plain(one)
    return figure, axes


def plain(axes: Axes) -> None:
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def wrapped(lines: Sequence[str], width: float) -> list[str]:
    """Lines broken for a figure of so many inches."""
    return [part for line in lines for part in textwrap.wrap(line, int(width * 14), subsequent_indent="   ")]


def heading(figure: Figure, title: str, lines: Sequence[str]) -> None:
    width, height = figure.get_size_inches()
    at: dict[str, Any] = {"x": 0.2 / width, "va": "top", "parse_math": False}  # an error message may hold a dollar
    size = min(14, 104 * (width - 0.4) / len(title))  # a setting's name may be long
    figure.text(y=1 - 0.2 / height, s=title, size=size, weight="bold", **at)
    figure.text(y=1 - 0.52 / height, s="\n".join(lines), size=8.5, color="#444444", linespacing=1.35, **at)
