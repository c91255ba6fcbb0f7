"""The range of a y axis, without outliers such as a spike or a first value."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rmsexp.records.frames.statistics import Array
from rmsexp.report.plots.chart import Axis, Values

REACH = 4.0  # values further from the quartiles than this, times the distance of the quartiles, do not set the range
SPACE = 0.04  # space between the range and the edges of the panel, relative to the range
BULK = (0.05, 0.95)  # quantiles
DECADES = 100  # an axis is logarithmic if the largest of these quantiles and ends is more than this times the smallest


def robust(title: str, values: Sequence[Values], ends: Sequence[float], may_be_log: bool) -> Axis:
    """Return the y axis for these curves.

    Its range has all values within ``REACH`` times the distance of the quartiles from them, and the ``ends``. The axis
    is logarithmic if ``may_be_log``, all values are positive, and most of them span ``DECADES``. Then the quartiles are
    those of the logarithms.

    Args:
        title: its title.
        values: the y values of each curve.
        ends: the last values of curves, which nobody should miss.
        may_be_log: whether the quantity may have a logarithmic axis.
    """
    pool = np.concatenate([*values, np.array(ends, float)]) if values else np.empty(0)
    pool, last = pool[np.isfinite(pool)], np.array([end for end in ends if math.isfinite(end)])
    if not len(pool):
        return Axis(title, (0.0, 1.0))
    if may_be_log and pool.min() > 0:
        bulk = np.concatenate([np.quantile(pool, BULK), last])
        if bulk.max() > DECADES * bulk.min():
            low, high = (math.exp(end) for end in _fences(np.log(pool), np.log(last)))
            space = (high / low) ** SPACE
            return Axis(title, (low / space, high * space), log=True)
    low, high = _fences(pool, last)
    space = SPACE * (high - low) or SPACE * abs(high) or SPACE
    return Axis(title, (low - space, high + space))


def _fences(pool: Array, ends: Array) -> tuple[float, float]:
    """Return the least and the greatest value that are not too far from the quartiles, or that are ends."""
    lower, upper = np.quantile(pool, [0.25, 0.75])
    reach = REACH * (upper - lower)
    kept = pool[(pool >= lower - reach) & (pool <= upper + reach)] if reach else pool
    return float(min([kept.min(), *ends])), float(max([kept.max(), *ends]))
