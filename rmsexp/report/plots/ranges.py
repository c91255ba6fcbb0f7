"""The range of a y axis, without outliers such as a spike or a first value, and the points where curves leave it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rmsexp.records.frames.curves import Points
from rmsexp.records.frames.statistics import Array

REACH = 4.0  # values further from the quartiles than this, times the distance of the quartiles, do not set the range
SPACE = 0.04  # space between the range and the edges of the panel, relative to the range
BULK = (0.05, 0.95)  # quantiles
DECADES = 100  # an axis is logarithmic if the largest of these quantiles and ends is more than this times the smallest


class Range(NamedTuple):
    """The range of an axis from ``low`` to ``high``, and whether the axis is logarithmic."""

    low: float
    high: float
    log: bool = False


class Beyond(NamedTuple):
    """Where the line of a series is furthest beyond a range: at (x, y), and whether that is above the range."""

    series: str
    x: float
    y: float
    above: bool


def bounds(values: Iterable[Array], unit: str) -> tuple[float, float]:
    """Return the smallest and the largest possible value of a quantity, to which bands are cut.

    Percentages are from 0 to 100. A quantity without negative values in the records is not negative.
    """
    if unit == "%":
        return 0.0, 100.0
    return (0.0 if all((y >= 0).all() for y in values) else -math.inf), math.inf


def robust(values: Sequence[Array], ends: Sequence[float], may_be_log: bool) -> Range:
    """Return the range of an axis for these curves.

    It has all values within ``REACH`` times the distance of the quartiles from them, and the ``ends``. The axis is
    logarithmic if ``may_be_log``, all values are positive, and most of them span ``DECADES``. Then the quartiles are
    those of the logarithms.

    Args:
        values: the y values of each curve.
        ends: the last values of curves, which nobody should miss.
        may_be_log: whether the quantity may have a logarithmic axis.
    """
    pool = np.concatenate([*values, np.array(ends, float)]) if values else np.empty(0)
    pool, last = pool[np.isfinite(pool)], np.array([end for end in ends if math.isfinite(end)])
    if not len(pool):
        return Range(0.0, 1.0)
    if may_be_log and pool.min() > 0:
        bulk = np.concatenate([np.quantile(pool, BULK), last])
        if bulk.max() > DECADES * bulk.min():
            low, high = (math.exp(end) for end in _fences(np.log(pool), np.log(last)))
            space = (high / low) ** SPACE
            return Range(low / space, high * space, log=True)
    low, high = _fences(pool, last)
    space = SPACE * (high - low) or SPACE * abs(high) or SPACE
    return Range(low - space, high + space)


def _fences(pool: Array, ends: Array) -> tuple[float, float]:
    """Return the least and the greatest value that are not too far from the quartiles, or that are ends."""
    lower, upper = np.quantile(pool, [0.25, 0.75])
    reach = REACH * (upper - lower)
    kept = pool[(pool >= lower - reach) & (pool <= upper + reach)] if reach else pool
    return float(min([kept.min(), *ends])), float(max([kept.max(), *ends]))


def beyond(lines: Mapping[str, Sequence[Points]], limits: Range) -> list[Beyond]:
    """Return where the lines of each series are furthest above and below a range, if they leave it.

    ``lines``: the lines of each series.
    """
    found = []
    for series, curves in lines.items():
        x, y = (np.concatenate(parts) for parts in zip(*curves, strict=True)) if curves else (np.empty(0),) * 2
        for above, sign in ((True, 1.0), (False, -1.0)):
            at = int(np.argmax(sign * y)) if len(y) else None
            if at is not None and (y[at] > limits.high if above else y[at] < limits.low):
                found.append(Beyond(series, float(x[at]), float(y[at]), above))
    return found


def spread(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return heights of labels as near to the given ones as they fit, at least ``gap`` apart, in the same order.

    They lie between ``low`` and ``high``, unless there are too many of them.
    """
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    placed = [0.0] * len(heights)
    floor = low
    for index in order:
        placed[index] = floor = max(heights[index], floor)
        floor += gap
    ceiling = high
    for index in reversed(order):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - gap
    return placed
