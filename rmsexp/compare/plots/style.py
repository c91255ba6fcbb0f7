"""What every figure and table agrees on: the names, the order and the colours of the norms. Imports nothing heavy."""

from __future__ import annotations

import zlib
from typing import Literal

from rmsexp.compare.records import names

COLOURS = {  # Okabe and Ito's palette, which colour-blind readers can tell apart, and a few of Paul Tol's
    "none": "#7f7f7f",
    "ln": "#0072B2",
    "rms": "#D55E00",
    "prms": "#E69F00",
    "bn": "#009E73",
    "wn": "#CC79A7",
    "l2": "#56B4E9",
    "nonparametric_ln": "#332288",
    "mean_only_bn": "#999933",
}
OTHER_COLOURS = ("#882255", "#000000", "#661100", "#44AA99", "#AA4499")  # for norms from outside


def colour(norm: str) -> str:
    """One colour a norm; that of a norm from outside depends on its name alone, so it is the same in every figure."""
    return COLOURS.get(norm) or OTHER_COLOURS[zlib.crc32(norm.encode()) % len(OTHER_COLOURS)]


Dash = Literal["-"] | tuple[float, tuple[float, ...]]  # as matplotlib takes it: offset, then lengths on and off
THIN, THICK = 0.8, 1.8
UNCOUNTED: Dash = (0, (2, 1.2))  # the dashes of time that does not count
PUBLISHED: Dash = (0, (4, 1, 1, 1))  # of the paper's curves
VARIANTS: tuple[Dash, ...] = (
    "-",
    (0, (7, 1.5)),
    (0, (7, 1.5, 1.5, 1.5)),
    (0, (7, 1.5, 1.5, 1.5, 1.5, 1.5)),
    (0, (12, 3)),
)


def dash_of(series: str, all_series: list[str]) -> Dash:
    """Variants of one norm share its colour and differ in their dashes."""
    same_norm = [one for one in all_series if names.norm_of(one) == names.norm_of(series)]
    return VARIANTS[same_norm.index(series) % len(VARIANTS)]
