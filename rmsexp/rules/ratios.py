"""Ratios of times that were measured in the same rounds, with their intervals."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

CONFIDENCE = 0.95
FEWEST_ROUNDS = 20  # of a record; an interval over fewer rounds of one process is unreliable
FEWEST_CLIPPED = 8  # with fewer rounds, clipping leaves too little of their spread to estimate an error
LARGEST_CORRELATION = 0.95


class Interval(NamedTuple):
    """A ratio of times and its 95 % interval. A ratio below 1 means faster than the reference."""

    ratio: float
    low: float
    high: float


def paired_ratio(seconds: ArrayLike, reference: ArrayLike) -> Interval:
    """Return the ratio seconds / reference in one process, with a t-interval over rounds that may be correlated.

    The ratio is exp of m, the interquartile mean of x = log(seconds / reference). This mean leaves out the lowest and
    the highest quarter of the n rounds, so a few disturbed rounds hardly change it, and it has less variance than the
    median. h rounds are left, and w is x clipped to their range (h = n, w = x if n < ``FEWEST_CLIPPED``):

        error² = sum((w - mean(w))²) / (h (h - 1)) · (1 + r) / (1 - r)

    where r is the correlation of w in neighbouring rounds, corrected for its bias and at least 0. The interval is
    m ± t error with n (1 - r) / (1 + r) / 2 - 1 degrees of freedom: the effective number of rounds, of which half are
    left. It is NaN with a single round. ``scripts/timing_coverage.py`` shows how often such intervals contain the true
    ratio.

    Args:
        seconds: the time of a norm or layer in each round, in their order, ``(rounds,)``.
        reference: the time of the reference in the same rounds, ``(rounds,)``.

    Sources: Yuen, "The two-sample trimmed t for unequal population variances" (1974), for the clipped values; Marriott
    and Pope, "Bias in the estimation of autocorrelations" (1954).
    """
    logarithms = np.log(np.asarray(seconds, float) / np.asarray(reference, float))
    if len(logarithms) == 1:
        return Interval(float(np.exp(logarithms[0])), math.nan, math.nan)
    if np.ptp(logarithms) < 1e-12:  # no variation, as for the reference relative to itself
        return Interval(*[float(np.exp(logarithms[0]))] * 3)
    rounds = len(logarithms)
    cut = rounds // 4
    middle = np.sort(logarithms)[cut : rounds - cut]
    values, left = np.clip(logarithms, middle[0], middle[-1]), len(middle)
    if rounds < FEWEST_CLIPPED or np.ptp(values) < 1e-12:  # or only the rounds that were clipped differ
        values, left = logarithms, rounds
    deviations = values - values.mean()
    squares = float(deviations @ deviations)
    correlation = float(deviations[1:] @ deviations[:-1]) / squares
    correlation = min(max(0.0, correlation + (1 + 3 * correlation) / rounds), LARGEST_CORRELATION)
    inflation = (1 + correlation) / (1 - correlation)
    error = math.sqrt(squares / (left * (left - 1)) * inflation)
    return _interval(float(middle.mean()), error, max(1.0, rounds / inflation / 2 - 1))


def over_processes(ratios: Sequence[float]) -> Interval:
    """Return exp of the mean of the logarithms of several processes' ratios, with its t-interval over processes."""
    logarithms = np.log(ratios)
    if np.ptp(logarithms) < 1e-12:
        return Interval(*[float(ratios[0])] * 3)
    error = float(logarithms.std(ddof=1)) / math.sqrt(len(logarithms))
    return _interval(float(logarithms.mean()), error, len(logarithms) - 1)


def _interval(mean: float, error: float, degrees: float) -> Interval:
    """Return exp of the t-interval of a mean of logarithms."""
    from scipy.special import stdtrit

    half = float(stdtrit(degrees, (1 + CONFIDENCE) / 2)) * error
    low, high = mean - half, min(mean + half, 700)  # exp of more overflows
    return Interval(math.exp(mean), math.exp(low), math.exp(high))
