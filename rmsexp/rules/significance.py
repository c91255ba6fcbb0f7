"""Tests of paired differences, and the correction for several tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special, stats

from rmsexp.rules.pairs import Array


def interval(differences: Array, alpha: float) -> tuple[float, float]:
    """Return the two-sided t-interval of the mean at confidence level 1 - 2 alpha, from at least two differences.

    mean ± t s / sqrt(n), where t is the 1 - alpha quantile of the t distribution with n - 1 degrees of freedom and s is
    the standard deviation (divisor n - 1). Each end is the bound of a one-sided test at level alpha.
    """
    count, mean = len(differences), float(np.mean(differences))
    half = float(special.stdtrit(count - 1, 1 - alpha) * np.std(differences, ddof=1)) / math.sqrt(count)
    return mean - half, mean + half


def p_between(differences: Array, lower: float, upper: float) -> float:
    """Return the p-value of two one-sided t-tests of the claim lower < mean < upper, from at least two differences.

    p = max(P(T >= (mean - lower) / se), P(T >= (upper - mean) / se)), se = s / sqrt(n). With an infinite bound this is
    the p-value of the other test. If all differences are equal, p is 0 if the claim holds for them, otherwise 1.
    """
    count, mean = len(differences), float(np.mean(differences))
    error = float(np.std(differences, ddof=1)) / math.sqrt(count)
    distance = min(mean - lower, upper - mean)
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(special.stdtr(count - 1, -distance / error))


def p_of_ranks(scores: Array) -> float:
    """Return the p-value of the exact one-sided sign-flip test that column 0 is better than column 1.

    All runs are ranked together, ties by their mean rank, diverged runs (-inf) last. The statistic is the sum over
    pairs of the difference of ranks. p is its share, among all 2^n ways to swap the two runs of each pair, that reaches
    the observed sum. The shares are computed pair by pair, which gives the same result as listing all ways.

    ``scores``: oriented scores, higher is better, shape ``(pairs, 2)``.
    """
    ranks = stats.rankdata(scores).reshape(scores.shape)
    differences = np.rint(2 * (ranks[:, 0] - ranks[:, 1])).astype(int)  # mean ranks are multiples of 1/2
    largest = int(np.abs(differences).sum())
    shares = np.zeros(2 * largest + 1)  # of the sums -largest, …, largest
    shares[largest] = 1
    for difference in differences:
        shares = (np.roll(shares, difference) + np.roll(shares, -difference)) / 2
    return float(shares[largest + int(differences.sum()) :].sum())


def holm(p_values: Sequence[float], alpha: float) -> list[tuple[float, float]]:
    """Return, for each p-value, the p-value adjusted by Holm's method and the level at which its test was decided.

    The tests are taken in the order of their p-values. The first of m is decided at alpha / m, the next at
    alpha / (m - 1), and so on up to the first that fails. That test and all after it fail at the level of that step.
    So a test passes exactly if its p-value is below its level. (S. Holm, Scand. J. Statist. 6, 1979.)
    """
    decided: dict[int, tuple[float, float]] = {}
    adjusted, level, passing = 0.0, alpha, True
    for step, index in enumerate(np.argsort(p_values, kind="stable")):
        remaining = len(p_values) - step
        adjusted = max(adjusted, min(1.0, remaining * p_values[index]))
        level = alpha / remaining if passing else level
        passing = passing and p_values[index] < level
        decided[int(index)] = adjusted, level
    return [decided[index] for index in range(len(p_values))]
