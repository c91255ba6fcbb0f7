"""Tests of paired differences."""

import math

import numpy as np

from rmsexp.rules.pairs import Array

SMALLEST_P = 1e-12  # p-values below count as 0


def interval(differences: Array, alpha: float, uncertainty: float = 0.0) -> tuple[float, float]:
    """Return the two-sided interval of the mean at confidence level 1 - 2 alpha, from at least two differences.

    mean ± sqrt((t s)² / n + (z u)²), where t is the 1 - alpha quantile of the t distribution with n - 1 degrees of
    freedom, s is the standard deviation (divisor n - 1), z is the 1 - alpha quantile of the normal distribution, and u
    is the standard deviation of an error that all differences have in common. Each end is the bound of a one-sided test
    at level alpha.
    """
    from scipy import special  # scipy takes 0.2 s to import, which a run that draws its curves does not need

    count, mean = len(differences), float(np.mean(differences))
    half = float(special.stdtrit(count - 1, 1 - alpha) * np.std(differences, ddof=1)) / math.sqrt(count)
    half = math.hypot(half, float(special.ndtri(1 - alpha)) * uncertainty)
    return mean - half, mean + half


def p_between(differences: Array, lower: float, upper: float, uncertainty: float = 0.0) -> float:
    """Return the p-value of two one-sided tests of the claim lower < mean < upper, from at least two differences.

    This is the smallest alpha at which :func:`interval` lies wholly between the bounds; without ``uncertainty``, p =
    max(P(T >= (mean - lower) / se), P(T >= (upper - mean) / se)), se = s / sqrt(n). With an infinite bound this is the
    p-value of the other test. If the interval is a point, p is 0 if the claim holds for it, otherwise 1.
    """
    from scipy.optimize import brentq  # scipy.optimize and scipy.stats take half a second to import

    mean = float(np.mean(differences))
    distance = min(mean - lower, upper - mean)

    def excess(alpha: float) -> float:
        return interval(differences, alpha, uncertainty)[1] - mean - abs(distance)

    if excess(SMALLEST_P) <= 0:
        return 0.0 if distance > 0 else 1.0
    alpha = float(brentq(excess, SMALLEST_P, 0.5)) if distance else 0.5
    return alpha if distance > 0 else 1 - alpha


def p_of_ranks(scores: Array) -> float:
    """Return the p-value of the exact one-sided sign-flip test that column 0 is better than column 1.

    All runs are ranked together, ties by their mean rank, diverged runs (-inf) last. The statistic is the sum over
    pairs of the difference of ranks. p is the share of the 2^n ways to swap runs within pairs whose sum is at least the
    observed one, computed by a convolution over pairs, with the result of listing all ways.

    ``scores``: oriented scores, higher is better, shape ``(pairs, 2)``.
    """
    from scipy.stats import rankdata

    ranks = rankdata(scores).reshape(scores.shape)
    differences = np.rint(2 * (ranks[:, 0] - ranks[:, 1])).astype(int)  # mean ranks are multiples of 1/2
    largest = int(np.abs(differences).sum())
    shares = np.zeros(2 * largest + 1)  # of the sums -largest, …, largest
    shares[largest] = 1
    for difference in differences:
        shares = (np.roll(shares, difference) + np.roll(shares, -difference)) / 2
    return float(shares[largest + int(differences.sum()) :].sum())
