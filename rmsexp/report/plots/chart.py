"""The model of every figure: a chart has panels, and a panel has marks, shaded rectangles, lines of text and two axes.

A chart is drawn by :mod:`rmsexp.report.plots.canvas` with matplotlib, and in the HTML page by ``page.js`` with Plotly.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmsexp.records.frames import names
from rmsexp.records.frames.statistics import Array
from rmsexp.report.plots.style import Look

Kind = Literal["line", "seed", "points", "hollow", "interval", "ring", "edge", "cross"]
Values = Sequence[float] | NDArray[np.float64]
Legend = Sequence[tuple[Look, str]]
REACH = 6.0  # as in :func:`robust`
SPACE, PADDING = 0.04, 0.06  # space beyond the range of :func:`robust`, and of :func:`padded`, relative to the range
BULK = (0.05, 0.95)  # quantiles
ARROWS = {"left": "$⇦$", "right": "$⇨$", "up": "$⇧$", "down": "$⇩$"}  # for matplotlib
DECADES = 100  # an axis is logarithmic if the largest of these quantiles and ends is more than this times the smallest


@dataclass(frozen=True)
class Mark:
    """Marks of one series.

    Attributes:
        kind: a thick "line" with a few markers; the thin line of a "seed"; faint "points"; "hollow"
            points; points with a horizontal "interval" each; a "ring" around each point; arrows at the "edge" of the
            panel, towards points beyond it; or a "cross" where a run diverged.
        look: its colour, marker and dashes.
        x, y: the points.
        low, high: the ends of the interval at each point: of y, drawn as a band, for "line", and else of x; NaN: none.
        label: what the marks are, for a tooltip.
        series: the series; empty for what the reader of the page cannot hide, such as numbers of the paper.
    """

    kind: Kind
    look: Look
    x: Values
    y: Values
    low: Values = ()
    high: Values = ()
    label: str = ""
    series: str = ""


class Text(NamedTuple):
    """Lines of text at the left edge of a panel, below ``y``."""

    y: float
    lines: list[str]


class Shade(NamedTuple):
    """A shaded rectangle from ``low`` to ``high`` on the x axis and from ``bottom`` to ``top`` on the y axis."""

    low: float
    high: float
    bottom: float
    top: float


class Axis(NamedTuple):
    """An axis.

    ``range``: its ends; None for those of the marks. ``log``: whether it is logarithmic. ``ticks``: the only ticks;
    None for automatic ones. ``labels``: the texts of the ``ticks``, if they are not the numbers.
    """

    title: str = ""
    range: tuple[float, float] | None = None
    log: bool = False
    ticks: Sequence[float] | None = None
    labels: Sequence[str] = ()

    @property
    def texts(self) -> list[str]:
        """The texts at the ticks."""
        return list(self.labels) or [f"{tick:g}" for tick in self.ticks or ()]


@dataclass(frozen=True)
class Panel:
    """A panel with marks in the order of drawing.

    ``note``: what a reader could not see, such as how many seeds a mean leaves out. ``line``: where a vertical line is
    drawn, such as 0 for differences. ``height``: in inches.
    """

    x: Axis
    y: Axis
    marks: Sequence[Mark]
    title: str = ""
    note: str = ""
    texts: Sequence[Text] = ()
    shades: Sequence[Shade] = ()
    line: float | None = None
    height: float = 3.1


@dataclass(frozen=True)
class Chart:
    """A figure. ``caption``: what it shows and how to read it. ``columns``: of panels side by side, at most."""

    title: str
    caption: Sequence[str]
    panels: Sequence[Panel]
    legend: Legend = field(default_factory=list)
    columns: int = 3


def interval(
    look: Look, y: float, values: tuple[float, float, float], label: str = "", series: str = "", *, single: bool = False
) -> Mark:
    """Return the mark of a point in a row at height ``y``. ``values``: the point, and the ends of its interval, or NaN.

    It is hollow without an interval, and if a ``single`` process measured it.
    """
    x, low, high = values
    if np.isnan(low):
        return Mark("hollow", look, [x], [y], label=f"{label} (no interval)", series=series)
    return Mark("hollow" if single else "interval", look, [x], [y], [low], [high], label, series)


def arrows(look: Look, side: str, x: Values, y: Values, label: str = "") -> Mark:
    """Return arrows at an edge of a panel, towards points beyond it: a shape that no norm has."""
    return Mark("edge", look._replace(marker=ARROWS[side], symbol=f"arrow-{side}"), x, y, label=label)


def rows(labels: Sequence[str], marks: Sequence[Mark], x: Axis, line: float, title: str = "") -> Panel:
    """Return a panel with a row for each label, at heights 0, -1, ...; ``line``: where the vertical line is drawn."""
    heights = [-float(row) for row in range(len(labels))]
    y = Axis(range=(heights[-1] - 0.6, 0.6), ticks=heights, labels=labels)
    lines = max(len(label.splitlines()) for label in labels)
    return Panel(x, y, marks, title, line=line, height=0.3 + (0.16 + 0.14 * lines) * len(labels))


def padded(values: Iterable[float]) -> tuple[float, float]:
    """Return the range of the finite values, widened on each side by ``PADDING`` of its length; (0, 1) without any."""
    finite = [value for value in values if np.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    space = PADDING * (max(finite) - min(finite)) or 1.0
    return min(finite) - space, max(finite) + space


def beyond(marks: Sequence[Mark], low: float, high: float) -> list[str]:
    """Return up to two notes: on the highest and on the lowest value of marks and bands outside of this range of y."""
    labels = names.labels(mark.series for mark in marks)
    values = [(float(value), mark.series) for mark in marks for value in (*mark.y, *mark.low, *mark.high)]
    ends = (("up to", *max(values)), ("down to", *min(values)))
    found = [(what, value, series) for what, value, series in ends if not low <= value <= high]
    return [f"beyond the axis: {what} {value:.3g} ({labels[series]})" for what, value, series in found]


def robust(title: str, values: Sequence[Values], ends: Sequence[float], may_be_log: bool, reach: float = REACH) -> Axis:
    """Return the y axis for curves with these y values.

    Its range has all values within ``reach`` times the distance of the quartiles from them, and the ``ends``: the last
    values of curves, which nobody should miss. The axis is logarithmic if ``may_be_log``, all values are positive, and
    most of them span ``DECADES``. Then the quartiles are those of the logarithms.
    """
    pool = np.concatenate([*values, np.array(ends, float)]) if values else np.empty(0)
    pool, last = pool[np.isfinite(pool)], np.array([end for end in ends if math.isfinite(end)])
    if not len(pool):
        return Axis(title, (0.0, 1.0))
    if may_be_log and pool.min() > 0:
        bulk = np.concatenate([np.quantile(pool, BULK), last])
        if bulk.max() > DECADES * bulk.min():
            low, high = (math.exp(end) for end in _fences(np.log(pool), np.log(last), reach))
            space = (high / low) ** SPACE
            return Axis(title, (low / space, high * space), log=True)
    low, high = _fences(pool, last, reach)
    space = SPACE * (high - low) or SPACE * abs(high) or SPACE
    return Axis(title, (low - space, high + space))


def _fences(pool: Array, ends: Array, reach: float) -> tuple[float, float]:
    """Return the least and the greatest value that are not too far from the quartiles, or that are ends."""
    lower, upper = np.quantile(pool, [0.25, 0.75])
    reach *= upper - lower
    kept = pool[(pool >= lower - reach) & (pool <= upper + reach)] if reach else pool
    return float(min([kept.min(), *ends])), float(max([kept.max(), *ends]))


def legend(panels: Iterable[Panel]) -> Legend:
    """Return a legend with each series of the panels, in the order of norms."""
    looks = {mark.series: mark.look for panel in panels for mark in panel.marks if mark.series}
    labels = names.labels(looks)
    return [(looks[series], labels[series]) for series in names.in_order(looks)]
