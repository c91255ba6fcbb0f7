"""The look of all figures: colours and markers of norms, line widths and dashes.

Colour is never the only sign of a norm: it has a marker, too, and lines have labels at their ends.
A test computes how far apart the colours are for readers with deuteranopia and protanopia.
"""

from __future__ import annotations

import zlib
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.markers import MarkerStyle

from rmsexp.records.frames.names import norm_of

Dash = Literal["-"] | tuple[float, tuple[float, ...]]  # for matplotlib: offset, then lengths of dashes and gaps


class Look(NamedTuple):
    """The colour of a norm, its matplotlib marker, and the same marker in Plotly."""

    colour: str
    marker: str
    symbol: str


LOOKS = {
    "none": Look("#777777", "o", "circle"),
    "ln": Look("#0077bb", "s", "square"),
    "rms": Look("#bb4400", "^", "triangle-up"),
    "prms": Look("#ccaa00", "v", "triangle-down"),
    "bn": Look("#00cc77", "D", "diamond"),
    "wn": Look("#bb00ff", "P", "cross"),
    "l2": Look("#bbaaee", "X", "x"),
    "nonparametric_ln": Look("#9988ff", "<", "triangle-left"),
    "mean_only_bn": Look("#668855", ">", "triangle-right"),
    "dyt": Look("#662266", "p", "pentagon"),
    "derf": Look("#77bbbb", "*", "star"),
}
OTHER_LOOKS = (  # of norms that users have added
    Look("#ff1144", "h", "hexagon"),
    Look("#2200cc", "d", "diamond-tall"),
    Look("#000000", "8", "octagon"),
)
GREY = "#777777"  # the vertical line of the reference, and the paper's savings
THIN, THICK = 1.0, 1.8  # line widths: of the curves of seeds, and of means
FAINT = 0.55  # the opacity of the curves of seeds
TIME_EXCLUDED: Dash = (0, (2, 1.2))  # curves against time of runs whose time is excluded from savings
PAPER: Dash = (0, (4, 1, 1, 1))  # curves of the paper
VARIANTS: tuple[Dash, ...] = (
    "-",
    (0, (7, 1.5)),
    (0, (7, 1.5, 1.5, 1.5)),
    (0, (7, 1.5, 1.5, 1.5, 1.5, 1.5)),
    (0, (12, 3)),
)
MARKED = 6  # a line has its marker at about so many of its points


def look(norm: str) -> Look:
    """Return the look of a norm. For a norm not in ``LOOKS`` it is computed from the name, so all figures agree."""
    return LOOKS.get(norm) or OTHER_LOOKS[zlib.crc32(norm.encode()) % len(OTHER_LOOKS)]


def colour(norm: str) -> str:
    """Return the colour of a norm."""
    return look(norm).colour


def marker(norm: str) -> str:
    """Return the matplotlib marker of a norm."""
    return look(norm).marker


def outline(norm: str) -> str:
    """Return the marker of a norm as the path of an SVG element, about 9 units wide and centred on (0, 0)."""
    style = MarkerStyle(marker(norm))
    points = style.get_path().transformed(style.get_transform()).to_polygons()[0]
    points = np.asarray(points) * [1, -1] * 4.5 / np.abs(points).max()  # the y axis of SVG points downward
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + "Z"


def marked(count: int, place: int) -> list[int]:
    """Return the indices of about ``MARKED`` points of a line that get a marker; all of them if there are few points.

    ``place``: the number of the line in its panel. Lines whose points are at the same x have their markers apart.
    """
    if count <= 2 * MARKED:
        return list(range(count))
    spacing = count / MARKED
    return [int((number + (place % 4 + 0.5) / 4) * spacing) for number in range(MARKED)]


def dash_of(series: str, all_series: list[str]) -> Dash:
    """Return the dashes of a series. Series of the same norm in ``all_series`` share a colour and differ in dashes.

    Beyond five of them, dashes repeat.
    """
    variants = [other for other in all_series if norm_of(other) == norm_of(series)]
    return VARIANTS[variants.index(series) % len(VARIANTS)]
