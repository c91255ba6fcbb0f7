"""The test of ranks against enumeration, and p with an uncertainty; test_claims.py has intervals and other p."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from rmsexp.rules import significance

DIFFERENCES = np.array([0.3, -0.1, 0.4, 0.2, 0.6, -0.2, 0.1])


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


def test_p_with_an_uncertainty_that_all_differences_share() -> None:
    p = significance.p_between(DIFFERENCES, -0.5, 0.9, 0.3)
    assert significance.interval(DIFFERENCES, p, 0.3)[0] == pytest.approx(-0.5)
    assert significance.p_between(np.zeros(3), -0.5, 0.5, 0.3) == pytest.approx(stats.norm.sf(0.5 / 0.3))
    assert significance.p_between(DIFFERENCES, 0.5, math.inf, 0.3) > 0.5
