"""Ratios of times paired by round, and their bootstrap intervals."""

from __future__ import annotations

import numpy as np
import pytest

from rmsexp.compare.records.ratios import paired_ratio


def test_a_ratio_is_paired_by_round() -> None:
    reference = np.array([1.0, 5.0, 2.0, 9.0, 3.0, 4.0])  # the machine's speed changes from round to round
    assert paired_ratio(0.9 * reference, reference) == pytest.approx((0.9, 0.9, 0.9))
    assert paired_ratio(reference, reference) == (1, 1, 1)
    disturbed = 0.9 * reference
    disturbed[1] *= 30
    assert paired_ratio(disturbed, reference).ratio == pytest.approx(0.9)
    assert paired_ratio([1, 2, 3, 4], [1, 1, 1, 1]).ratio == pytest.approx(6**0.5)  # 1 and 4 are trimmed


def test_the_interval_is_a_bootstrap_over_rounds() -> None:
    rng = np.random.default_rng(3)
    seconds, reference = rng.normal(1.05, 0.02, 40), rng.normal(1, 0.02, 40)
    interval, ratios = paired_ratio(seconds, reference), seconds / reference
    resamples = np.sort(rng.choice(np.log(ratios), (20_000, 40)))
    assert interval.ratio == pytest.approx(np.exp(np.sort(np.log(ratios))[10:30].mean()))
    percentiles = np.quantile(resamples[:, 10:30].mean(1), [0.025, 0.975]) - np.log(interval.ratio)
    expected = interval.ratio * np.exp(percentiles * 2.0930 / 1.9600)  # t with 19 degrees of freedom over the normal
    assert (interval.low, interval.high) == pytest.approx(expected, abs=1e-3)
    assert interval.width == interval.high - interval.low
    assert paired_ratio(seconds, reference) == interval  # the same seconds give the same interval


def test_intervals_of_equal_times_contain_one_as_often_as_stated() -> None:
    rng = np.random.default_rng(0)
    intervals = [paired_ratio(*rng.normal(1, 0.03, (2, 30))) for _ in range(200)]
    assert 182 <= sum(interval.low <= 1 <= interval.high for interval in intervals) < 200
