"""The look of all figures: colours of norms, line widths and dashes."""

from __future__ import annotations

import zlib
from typing import Literal

from rmsexp.compare.records.names import norm_of

Dash = Literal["-"] | tuple[float, tuple[float, ...]]  # for matplotlib: offset, then lengths of dashes and gaps

COLOURS = {  # grey, and colours that colour-blind readers can tell apart, by Okabe & Ito and by Paul Tol
    "none": "#7f7f7f",
    "ln": "#0072B2",
    "rms": "#D55E00",
    "prms": "#E69F00",
    "bn": "#009E73",
    "wn": "#CC79A7",
    "l2": "#56B4E9",
    "nonparametric_ln": "#332288",
    "mean_only_bn": "#999933",
    "dyt": "#000000",
    "derf": "#882255",
}
OTHER_COLOURS = ("#117733", "#661100", "#44AA99", "#AA4499")  # of norms that users have added
GREY = "#777777"  # the vertical line of the reference, and the paper's savings
THIN, THICK = 0.8, 1.8  # line widths: of the curves of seeds, and of means
TIME_EXCLUDED: Dash = (0, (2, 1.2))  # curves against time of runs whose time is excluded from savings
PAPER: Dash = (0, (4, 1, 1, 1))  # curves of the paper
VARIANTS: tuple[Dash, ...] = (
    "-",
    (0, (7, 1.5)),
    (0, (7, 1.5, 1.5, 1.5)),
    (0, (7, 1.5, 1.5, 1.5, 1.5, 1.5)),
    (0, (12, 3)),
)


def colour(norm: str) -> str:
    """Return the colour of a norm. For a norm not in ``COLOURS`` it is computed from the name, so all figures agree."""
    return COLOURS.get(norm) or OTHER_COLOURS[zlib.crc32(norm.encode()) % len(OTHER_COLOURS)]


def dash_of(series: str, all_series: list[str]) -> Dash:
    """Return the dashes of a series. Series of the same norm in ``all_series`` share a colour and differ in dashes.

    Beyond five of them, dashes repeat.
    """
    variants = [other for other in all_series if norm_of(other) == norm_of(series)]
    return VARIANTS[variants.index(series) % len(VARIANTS)]
