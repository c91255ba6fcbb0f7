"""The median time until runs reach something, of which some never reach it or were not observed for long enough."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rmsexp.records.frames.statistics import CONFIDENCE, Array

ROUNDING = 1e-9  # largest error of a computed probability


class Median(NamedTuple):
    """A median and its 95 % interval.

    Attributes:
        value: the median; inf if half of the runs did not reach it.
        low, high: the ends of the interval; inf for "not reached"; NaN below six runs.
    """

    value: float
    low: float
    high: float


def median(times: Array, reached: NDArray[np.bool_]) -> Median:
    """Return the Kaplan-Meier median of at least one run, and its exact interval from order statistics.

    S(t) is the product over times up to t of 1 - (runs that reached it then) / (runs still observed without it). The
    median is the first t at which S(t) < 1/2, or the middle between this and the t from which S = 1/2, as usual for
    medians of an even number. (Kaplan and Meier, J. Am. Stat. Assoc. 53, 1958.)

    The interval contains the median with at least 95 % probability for any distribution of the times, however few runs
    there are and whatever the reason why some were not observed to the end: its low end takes these runs to reach it at
    once after ``times``, its high end takes them never to reach it. Below six runs no interval has such a probability.

    Args:
        times: when each run reached it; for other runs, until when they were observed, or inf if they never reach it.
        reached: whether it reached it.
    """
    low, _ = _interval(times)
    _, high = _interval(np.where(reached, times, math.inf))
    never = 2 * max(times[np.isfinite(times)], default=0.0) + 1  # scipy takes finite times only: after all others
    censored = stats.CensoredData(times[reached], right=np.where(np.isinf(times), never, times)[~reached])
    survival = stats.ecdf(censored).sf
    at_half = survival.quantiles[survival.probabilities <= 0.5 + ROUNDING]
    below_half = survival.quantiles[survival.probabilities < 0.5 - ROUNDING]
    value = (at_half[0] + below_half[0]) / 2 if len(below_half) else math.inf
    return Median(float(value), float(low), float(high))


def _interval(times: Array) -> tuple[float, float]:
    """Return the interval of the median of times that are all known."""
    return stats.quantile_test(times, p=0.5).confidence_interval(CONFIDENCE)  # type: ignore[return-value]  # wrong stub
