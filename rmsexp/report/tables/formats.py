"""Number formats that tables share. Metrics that are fractions, such as errors, are shown in percent."""

import math
from collections.abc import Sequence

import numpy as np

from rmsexp.records.frames.names import FINE, scale_and_unit
from rmsexp.rules.ratios import Interval

NO_VALUE = "\N{EN DASH}"
MORE_DECIMALS = 6  # of an end of an interval, at most; what is nearer to a bound is a rounding error


def four_digits(value: float) -> str:
    """Return a finite number with at least four significant digits.

    If its absolute value is below 1e-4, it has at most four, perhaps with an exponent, such as "2e-05".
    """
    return f"{value:.4g}" if abs(value) < 1e-4 else f"{value:.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"


def two_digits(value: float) -> str:
    """Return a number with at most two significant digits, and from 100 on without an exponent, such as "120"."""
    text = f"{value:.2g}"
    return f"{float(text):.0f}" if "e+" in text else text


def without_exponent(value: float) -> str:
    """Return a number with at most four significant digits, or with all digits of its whole part, such as "10240"."""
    return f"{value:.4g}" if abs(value) < 9999.5 else f"{value:.0f}"


def quality(
    value: float, metric: str, interval: float = math.nan, remarks: Sequence[str] = (), decimals: int | None = None
) -> str:
    """Return a metric, with half its interval if it is not NaN, and with remarks in parentheses.

    Example: "9.512 ± 0.2 (sd 0.1) %" with the remark "sd 0.1". If the value is NaN, return ``NO_VALUE``.
    Without ``decimals`` the value has four digits.
    """
    factor, unit = scale_and_unit(metric)
    if math.isnan(value):
        return NO_VALUE
    text = four_digits(value * factor) if decimals is None else f"{value * factor:.{decimals}f}"
    if not math.isnan(interval):
        text += f" ± {two_digits(interval * factor)}"
    if remarks:
        text += f" ({', '.join(remarks)})"
    return f"{text} {unit}".rstrip()


def of_seeds(averaged: int, seeds: int) -> list[str]:
    """Return the remark on a mean that leaves seeds out, such as "2 of 3 seeds", in a list; else an empty list."""
    return [f"{averaged} of {seeds} seeds"] if averaged < seeds else []


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 seed" or "3 seeds"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def signed(value: float, metric: str) -> str:
    """Return a difference, which is given in the displayed unit, with sign and two or four decimals: "+0.51".

    Return ``NO_VALUE`` for NaN.
    """
    return NO_VALUE if math.isnan(value) else f"{value:+z.{4 if metric in FINE else 2}f}"  # z: no negative zero


def ends(low: float, high: float, metric: str, margin: float) -> str:
    """Return the ends of the interval of a difference as :func:`signed` writes them, such as "-0.03 to +0.25".

    An end has as many decimals as it needs to lie on the same side of 0 and of ± ``margin``, unless this is NaN, as
    before it was rounded: what is wholly within ±1 does not seem to reach to +1.00. An infinite end is "no bound".
    """
    bounds = [0.0] if math.isnan(margin) else [0.0, margin, -margin]
    return " to ".join(_end(value, metric, bounds) for value in (low, high))


def _end(value: float, metric: str, bounds: Sequence[float]) -> str:
    if math.isinf(value):
        return "no bound"
    fewest = 4 if metric in FINE else 2
    texts = [f"{value:+.{decimals}f}" for decimals in range(fewest, fewest + MORE_DECIMALS + 1)]
    sides = [np.sign(value - bound) for bound in bounds]
    return next((text for text in texts if [np.sign(float(text) - bound) for bound in bounds] == sides), texts[0])


def median_and_range(median: float, low: float, high: float, remark: str = "") -> str:
    """Return "50.12 (49.90 to 51.00, remark)" for median, low, high and remark; ``NO_VALUE`` if the median is NaN."""
    if math.isnan(median):
        return NO_VALUE
    return f"{four_digits(median)} ({four_digits(low)} to {four_digits(high)}{f', {remark}' if remark else ''})"


def ratio(interval: Interval) -> str:
    """Return a ratio and its interval if that is known, such as "0.900 (0.890 to 0.910)"."""
    bounds = "" if math.isnan(interval.low) else f" ({interval.low:.3f} to {interval.high:.3f})"
    return f"{interval.ratio:.3f}{bounds}"


def saving(fraction: float, low: float = math.nan, high: float = math.nan) -> str:
    """Return a saving of time, and its interval if ``low`` is not NaN, such as "20.0 % (17.0 to 22.0 %)".

    What rounds to 0 has no sign.
    """
    interval = "" if math.isnan(low) else f" ({low * 100:z.1f} to {high * 100:z.1f} %)"
    return f"{fraction * 100:z.1f} %{interval}"
