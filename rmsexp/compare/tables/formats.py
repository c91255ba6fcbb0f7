"""One row a series: quality at the common step, time per step, and the saving against LN."""

from __future__ import annotations

import math

NO_VALUE = "\N{EN DASH}"


def four_digits(value: float) -> str:
    """At least four significant digits, and never an exponent for what is large."""
    return f"{value:.4g}" if abs(value) < 1e-4 else f"{value:.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"
