"""Ratios of times paired by round, and their intervals over rounds and over processes."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from rmsexp.rules.ratios import over_processes, paired_ratio


def test_a_ratio_is_paired_by_round() -> None:
    reference = np.array([1.0, 5.0, 2.0, 9.0, 3.0, 4.0])  # the machine's speed changes from round to round
    assert paired_ratio(0.9 * reference, reference) == pytest.approx((0.9, 0.9, 0.9))
    assert paired_ratio(reference, reference) == (1, 1, 1)
    assert paired_ratio([0.09], [0.1]) == pytest.approx((0.9, np.nan, np.nan), nan_ok=True)
    disturbed = 0.9 * reference
    disturbed[1] *= 30
    assert paired_ratio(disturbed, reference).ratio == pytest.approx(0.9)
    assert paired_ratio([1, 2, 3, 4], [1, 1, 1, 1]).ratio == pytest.approx(6**0.5)  # 1 and 4 are trimmed


def test_the_error_follows_from_the_clipped_values_and_their_correlation() -> None:
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 0.02, 41)
    logarithms = noise[1:] + 0.8 * noise[:-1]
    interval = paired_ratio(np.exp(logarithms), np.ones(40))
    ordered = np.sort(logarithms)
    clipped = pd.Series(logarithms).clip(ordered[10], ordered[29])
    correlation = float(clipped.autocorr())
    correlation += (1 + 3 * correlation) / 40
    assert 0.2 < correlation < 0.7
    inflation = (1 + correlation) / (1 - correlation)
    error = np.sqrt(clipped.var() * 39 / (20 * 19) * inflation)
    half = float(scipy.stats.t.ppf(0.975, 40 / inflation / 2 - 1)) * error
    mean = ordered[10:30].mean()
    assert interval == pytest.approx(np.exp([mean, mean - half, mean + half]), rel=2e-3)  # autocorr has other means


@pytest.mark.parametrize("ratio", [1, 0.7])
def test_rounds_that_differ_only_at_the_ends_give_an_interval(ratio: float) -> None:
    """Clipping makes all rounds equal, so that the spread is that of the unclipped rounds."""
    seconds = np.full(30, 0.5)
    seconds[7] = 0.9
    interval = paired_ratio(ratio * seconds, np.full(30, 0.5))
    assert interval.ratio == pytest.approx(ratio)
    assert 0.9 * ratio < interval.low < 0.99 * ratio
    assert 1.01 * ratio < interval.high < 1.1 * ratio


def test_ratios_that_differ_beyond_measure_have_an_interval_without_an_end() -> None:
    interval = over_processes([1e-300, 1e300])
    assert interval.low == 0
    assert np.isfinite(interval.high)


@pytest.mark.parametrize("rounds", [2, 4, 7, 8, 30])
def test_intervals_of_equal_times_contain_one_as_often_as_stated(rounds: int) -> None:
    rng = np.random.default_rng(0)
    intervals = [paired_ratio(*rng.normal(1, 0.03, (2, rounds))) for _ in range(300)]
    assert sum(interval.low <= 1 <= interval.high for interval in intervals) >= 278


def test_over_processes_is_a_t_interval_of_logarithms() -> None:
    ratios = [0.90, 0.93, 0.91, 0.95, 0.89, 0.92]
    interval = over_processes(ratios)
    mean, error = np.log(ratios).mean(), scipy.stats.sem(np.log(ratios))
    low, high = scipy.stats.t.interval(0.95, 5, mean, error)
    assert interval == pytest.approx(np.exp([mean, low, high]))
    assert over_processes([1.0, 1.0]) == (1, 1, 1)
