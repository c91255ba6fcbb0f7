"""Draw a chart with matplotlib, and write figures to files. All sizes are in inches."""

import hashlib
import pickle
import textwrap
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator

from rmsexp.report.plots import style
from rmsexp.report.plots.chart import Axis, Chart, Mark, Panel
from rmsexp.system import atomic

WIDTH = 4.3  # of a panel
GAP = (0.85, 0.75)  # space to the left of and below each panel, for tick labels and axis titles
LINE, ENTRY = 0.165, 0.21  # heights of a line of small text and of an entry of the legend
SMALL, GREY = 8.5, "#444444"  # size and colour of captions and notes
MARKED = 6  # a line has its marker at about so many of its points
# Text in SVG files is stored as text, and drawing the same records twice gives identical files.
SVG: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "rmsexp"}
LOOKS: dict[str, dict[str, Any]] = {  # of lines and markers, by the kind of a mark
    "line": {},
    "seed": {"linewidth": style.THIN, "alpha": 0.55},
    "points": {"linestyle": "", "markersize": 5, "alpha": 0.6},
    "hollow": {"linestyle": "", "fillstyle": "none", "markeredgewidth": 1.4},
    "interval": {"linestyle": ""},
    "ring": {"linestyle": "", "marker": "o", "markersize": 12, "fillstyle": "none", "markeredgewidth": 1.6},
    "edge": {"linestyle": "", "markersize": 11, "clip_on": False},
    "cross": {"linestyle": "", "marker": "x", "markersize": 8, "markeredgewidth": 2, "clip_on": False},
}


def save(chart: Chart, path: Path, suffixes: Sequence[str] = ("png", "svg")) -> None:
    """Draw a chart and :func:`write` it, unless its files are there and were drawn from an equal chart.

    Drawing takes half of the time of a report, and most figures are as they were in the report before.
    """
    digest = hashlib.sha256(_code() + pickle.dumps(chart)).hexdigest()
    if not all(_holds(path.with_name(f"{path.name}.{suffix}"), digest) for suffix in suffixes):
        write(draw(chart), path, suffixes, digest)


@cache
def _code() -> bytes:
    """Return what decides how a chart looks: the sources of this folder and the version of matplotlib."""
    sources = (source.read_bytes() for source in sorted(Path(__file__).parent.glob("*.py")))
    return matplotlib.__version__.encode() + b"".join(sources)


def _holds(path: Path, digest: str) -> bool:
    """Return whether a file has a digest in its metadata, which are at its beginning."""
    try:
        with path.open("rb") as file:
            return digest.encode() in file.read(4096)
    except OSError:
        return False


def write(figure: Figure, path: Path, suffixes: Sequence[str] = ("png", "svg"), digest: str | None = None) -> None:
    """Write the figure as ``<path>.png`` and ``<path>.svg``, or with one of these ``suffixes`` alone.

    ``digest``: that of its chart, which is stored in the metadata.
    """
    for suffix in suffixes:
        buffer = BytesIO()
        with matplotlib.rc_context(SVG):
            if suffix == "svg":
                figure.savefig(buffer, format="svg", metadata={"Date": None, "Identifier": digest})
            else:
                options: dict[str, Any] = {"metadata": {"Comment": digest}, "pil_kwargs": {"compress_level": 1}}
                figure.savefig(buffer, format="png", dpi=150, **options)
        atomic.write_atomic(path.with_name(f"{path.name}.{suffix}"), buffer.getvalue())


@matplotlib.rc_context({"text.parse_math": False})  # dollar signs in texts from records appear as they are
def draw(chart: Chart) -> Figure:
    """Return the figure of a chart: title and caption, then rows of panels, and the legend to the right of them."""
    texts = [text for _, text in chart.legend]
    room = 0.95 + 0.072 * max(map(len, "\n".join(texts).splitlines())) if texts else 0.2
    labels = [line for panel in chart.panels for text in panel.y.texts for line in text.splitlines()]
    left = GAP[0] if any(panel.y.title for panel in chart.panels) else 0.3
    left = max(left, 0.2 + 0.078 * max(map(len, labels), default=0))
    columns = min(chart.columns, len(chart.panels))
    width = columns * (left + WIDTH) + room
    caption = [part for line in chart.caption for part in textwrap.wrap(line, int(width * 14), subsequent_indent="   ")]
    rows = [chart.panels[start : start + columns] for start in range(0, len(chart.panels), columns)]
    heads = [max(LINE * (len(_heading(panel)) + 1) for panel in row) for row in rows]
    heights = [head + max(panel.height for panel in row) + GAP[1] for head, row in zip(heads, rows, strict=True)]
    top = 0.6 + LINE * len(caption)
    entries = ENTRY * (len("\n".join(texts).splitlines()) + 1)
    height = top + max(sum(heights), entries)
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    size = min(14, 104 * (width - 0.4) / len(chart.title))  # smaller for settings with long names
    figure.text(0.2 / width, 1 - 0.2 / height, chart.title, size=size, weight="bold", va="top")
    figure.text(0.2 / width, 1 - 0.52 / height, "\n".join(caption), size=SMALL, color=GREY, linespacing=1.35, va="top")
    for number, (row, head) in enumerate(zip(rows, heads, strict=True)):
        upper = top + sum(heights[:number]) + head
        for column, panel in enumerate(row):
            corner = (left + column * (left + WIDTH)) / width, 1 - (upper + panel.height) / height
            _panel(figure.add_axes((*corner, WIDTH / width, panel.height / height)), panel)
    if texts:
        handles = [Line2D([], [], linewidth=style.THICK, **_paint(look), ls=look.dash) for look, _ in chart.legend]
        corner = (1 - (room - 0.1) / width, 1 - (top + heads[0]) / height)
        style_of_legend: dict[str, Any] = {"borderaxespad": 0, "frameon": False, "handlelength": 4.2, "fontsize": 9}
        figure.legend(handles, texts, loc="upper left", bbox_to_anchor=corner, **style_of_legend)
    return figure


def _paint(look: style.Look) -> dict[str, Any]:
    paint = {"color": look.colour, "marker": look.marker}
    return paint | ({"markerfacecolor": "white"} if "open" in look.symbol else {})


def _heading(panel: Panel) -> list[str]:
    """Return the lines above a panel: its title and its note."""
    return [part for text in (panel.title, panel.note) for part in textwrap.wrap(text, 62)]


def _panel(axes: Axes, panel: Panel) -> None:
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    for text in panel.texts:
        box = axes.text(0.015, text.y, "\n".join(text.lines), size=8, transform=axes.get_yaxis_transform(), va="top")
        box.set(zorder=1.9, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # below marks
    if panel.line is not None:
        axes.axvline(panel.line, color=style.PAPERS.colour, linewidth=0.8, zorder=1.5)
    for shade in panel.shades:
        axes.fill_betweenx([shade.bottom, shade.top], shade.low, shade.high, color="#dcdcdc", linewidth=0)
    lines = [mark for mark in panel.marks if mark.kind == "line"]
    for mark in panel.marks:
        place: int = next((number for number, line in enumerate(lines) if line.look == mark.look), len(lines) - 1)
        _mark(axes, mark, place, len(lines))
    _axis(axes, "x", panel.x)
    _axis(axes, "y", panel.y)
    heading = _heading(panel)
    axes.set_title("\n".join(heading), size=SMALL if panel.note else 10, loc="left", linespacing=1.3)


def _axis(axes: Axes, which: Literal["x", "y"], axis: Axis) -> None:
    own = axes.xaxis if which == "x" else axes.yaxis
    own.set_label_text(axis.title, fontsize=min(10.0, 410 / max(1, len(axis.title))))  # fits the height of a panel
    if axis.log:
        axes.set(**{f"{which}scale": "log"})
    if axis.ticks is not None:
        own.set_ticks(axis.ticks, axis.texts, size=8 if axis.title else 9)
        own.set_minor_locator(NullLocator())
        own.set_minor_formatter(NullFormatter())
    elif not axis.log:
        axes.locator_params(axis=which, nbins=5, integer=axis.title in ("step", "layer"), min_n_ticks=1)
    if axis.range is not None:
        axes.set(**{f"{which}lim": axis.range})
    if axis.log and axis.ticks is None:  # matplotlib's own powers are formulas
        for tick in (*own.get_major_ticks(), *own.get_minor_ticks()):
            tick.label1.set_parse_math(True)


def _mark(axes: Axes, mark: Mark, place: int, lines: int) -> None:
    """Draw a mark. ``place``: that of its line among the ``lines`` of the panel."""
    paint, look = _paint(mark.look), LOOKS[mark.kind]
    size = 1 + (style.WIDEST - 1) * (lines - 1 - place) / max(1, lines - 1)
    if mark.kind in ("line", "seed"):
        look = {"linestyle": mark.look.dash, **look, "markevery": marked(len(mark.x), (place + 0.5) / max(1, lines))}
    if mark.kind == "line":
        edge = 1.2 if "open" in mark.look.symbol else 0
        look |= {"linewidth": style.THICK * size, "markersize": 4 + 2 * size, "markeredgewidth": edge}
    elif mark.kind == "ring":
        look = look | {"markersize": 8 + 4 * size}
    if mark.kind == "seed" and len(mark.x) > 1:
        look = look | {"marker": ""}
    # the markers of arrows are formulas
    with matplotlib.rc_context({"text.parse_math": True}) if mark.kind == "edge" else nullcontext():
        axes.plot(mark.x, mark.y, label=mark.label, **paint | look)
    if mark.kind == "line" and len(mark.low):
        axes.fill_between(mark.x, mark.low, mark.high, color=mark.look.colour, alpha=0.15, linewidth=0)
    elif len(mark.low):
        errors = [np.subtract(mark.x, mark.low), np.subtract(mark.high, mark.x)]
        axes.errorbar(mark.x, mark.y, xerr=errors, color=mark.look.colour, fmt="none", capsize=4)


def marked(count: int, shift: float) -> list[int]:
    """Return the indices of about ``MARKED`` points of a line that get a marker; all of them if there are few.

    ``shift``, in [0, 1): the position within the interval between markers, so that those of equal lines are apart.
    """
    if count <= 2 * MARKED:
        return list(range(count))
    return [int((number + shift) * count / MARKED) for number in range(MARKED)]
