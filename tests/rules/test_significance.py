"""Intervals and tests against scipy and against enumeration."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from rmsexp.rules import significance

DIFFERENCES = np.array([0.3, -0.1, 0.4, 0.2, 0.6, -0.2, 0.1])


def test_interval_and_p_agree_with_scipy() -> None:
    test = stats.ttest_1samp(DIFFERENCES, 0, alternative="greater")
    expected = stats.ttest_1samp(DIFFERENCES, 0).confidence_interval(0.9)
    assert significance.interval(DIFFERENCES, 0.05) == pytest.approx(tuple(expected))
    assert significance.p_between(DIFFERENCES, 0, math.inf) == pytest.approx(test.pvalue)
    below = stats.ttest_1samp(DIFFERENCES, 0.5, alternative="less").pvalue
    above = stats.ttest_1samp(DIFFERENCES, -0.5, alternative="greater").pvalue
    assert significance.p_between(DIFFERENCES, -0.5, 0.5) == pytest.approx(max(below, above))


@pytest.mark.parametrize(("value", "p"), [(0.0, 0), (0.4, 0), (0.5, 1), (-0.5, 1), (0.7, 1)])
def test_equal_differences_need_no_spread(value: float, p: float) -> None:
    differences = np.full(4, value)
    assert significance.p_between(differences, -0.5, 0.5) == p
    assert significance.interval(differences, 0.05) == (value, value)


def by_enumeration(scores: np.ndarray) -> float:
    """Return the p-value of the sign-flip test of ranks, from all 2^n ways to swap the runs of each pair."""
    ranks = stats.rankdata(scores).reshape(scores.shape)
    differences = ranks[:, 0] - ranks[:, 1]
    sums = [np.dot(signs, differences) for signs in itertools.product((1, -1), repeat=len(differences))]
    return float(np.mean(np.array(sums) >= differences.sum() - 1e-9))


@pytest.mark.parametrize("pairs", [1, 2, 5, 8, 11])
@pytest.mark.parametrize("diverged", [0, 1, 3])
def test_the_test_of_ranks_agrees_with_enumeration(pairs: int, diverged: int) -> None:
    generator = np.random.default_rng([pairs, diverged])
    scores = generator.integers(0, 12, (pairs, 2)).astype(float)  # with ties
    scores[generator.integers(0, pairs, diverged), generator.integers(0, 2, diverged)] = -np.inf
    assert significance.p_of_ranks(scores) == pytest.approx(by_enumeration(scores), abs=1e-12)


def test_an_uncertainty_that_all_differences_share_widens_the_interval() -> None:
    low, high = significance.interval(DIFFERENCES, 0.05)
    wide = significance.interval(DIFFERENCES, 0.05, 0.3)
    half = math.hypot((high - low) / 2, stats.norm.ppf(0.95) * 0.3)
    assert wide == pytest.approx((DIFFERENCES.mean() - half, DIFFERENCES.mean() + half))
    p = significance.p_between(DIFFERENCES, -0.5, 0.9, 0.3)
    assert significance.interval(DIFFERENCES, p, 0.3)[0] == pytest.approx(-0.5)
    assert significance.p_between(np.zeros(3), -0.5, 0.5, 0.3) == pytest.approx(stats.norm.sf(0.5 / 0.3))
    assert significance.p_between(DIFFERENCES, 0.5, math.inf, 0.3) > 0.5
