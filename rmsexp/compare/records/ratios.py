"""Ratios of times that were measured in the same rounds, with their intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

CONFIDENCE = 0.95
RESAMPLES = 2000


class Interval(NamedTuple):
    """A ratio of times and its 95 % interval. A ratio below 1 means faster than the reference."""

    ratio: float
    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low


def paired_ratio(seconds: ArrayLike, reference: ArrayLike) -> Interval:
    """Return the ratio seconds / reference with a percentile bootstrap interval over rounds.

    The ratio is exp of the interquartile mean of log(seconds / reference). This mean leaves out the lowest and the
    highest quarter of the rounds, so a few disturbed rounds hardly change it, and it has less variance than the median.

    Percentile intervals of few rounds are too narrow. The distances of both ends from the mean (of the logarithms) are
    therefore multiplied by the 97.5 % quantile of Student's t divided by that of the normal distribution. The degrees
    of freedom are max(1, rounds // 2 - 1), because the mean covers half of the rounds. In 6,000 simulated measurements
    that stopped as soon as the interval was narrow enough, with and without disturbance, 94 to 97 % of the intervals
    contained the true ratio.

    Args:
        seconds: the time of a norm or layer in each round, ``(rounds,)``.
        reference: the time of the reference in the same rounds, ``(rounds,)``.
    """
    logarithms = np.log(np.asarray(seconds, float) / np.asarray(reference, float))
    if np.ptp(logarithms) < 1e-12:  # no variation, as for the reference relative to itself
        return Interval(*[float(np.exp(logarithms[0]))] * 3)
    from scipy.special import ndtri, stdtrit
    from scipy.stats import bootstrap, trim_mean

    def interquartile_mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
        return trim_mean(values, 0.25, axis=axis)

    percentiles = bootstrap(
        (logarithms,),
        interquartile_mean,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=0,
    ).confidence_interval
    tail = (1 + CONFIDENCE) / 2
    widening = stdtrit(max(1, len(logarithms) // 2 - 1), tail) / ndtri(tail)
    center = float(interquartile_mean(logarithms))
    ends = (center + widening * (end - center) for end in percentiles)
    return Interval(*(float(np.exp(value)) for value in (center, *ends)))
