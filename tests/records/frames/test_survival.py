"""The median time until runs reach something, with runs that did not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rmsexp.records.frames import survival


def of(times: list[float], *censored: float) -> survival.Median:
    """Return the median; ``censored``: until when the other runs were observed, inf for runs that never reach it."""
    reached = np.array([True] * len(times) + [False] * len(censored))
    return survival.median(np.array([*times, *censored], dtype=float), reached)


def test_the_median_of_published_data() -> None:
    # weeks of remission of leukaemia with 6-mercaptopurine: Freireich et al., Blood 21, 1963; the median is 23
    relapsed, observed = [6, 6, 6, 7, 10, 13, 16, 22, 23], [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    found = of(relapsed, *observed)
    assert found.value == 23
    assert (found.low, found.high) == (9, math.inf)  # the 6th of all times; the 16th, if the others never relapse


def test_without_censoring_it_is_the_ordinary_median() -> None:
    for times in ([7.0], [4.0, 1.0], [3.0, 1.0, 9.0], [4.0, 2.0, 8.0, 2.0], [5.0, 5.0, 5.0]):
        assert of(times).value == np.median(times)
        assert math.isnan(of(times).low)


def test_a_censored_run_counts_up_to_its_end_and_a_lost_run_for_ever() -> None:
    assert of([100, 200, 300], 50).value == 200
    assert of([100, 200, 300], math.inf).value == 250
    assert of([100, 200], 250, 250).value == of([100], math.inf, 50).value == of([], 10).value == math.inf


def test_intervals_need_six_runs() -> None:
    assert [math.isnan(end) for end in of([1, 2, 3, 4, 5])[1:]] == [True, True]
    assert of([1, 2, 3, 4, 5, 6])[1:] == (1, 6)
    assert of([3, 3, 3, 3, 3, 3])[1:] == (3, 3)
    assert of([2, 3, 4, 5, 6, 7, 8], 1)[1:] == (1, math.inf)
    assert of([2, 3, 4, 5, 6, 7, 8], math.inf)[1:] == (2, math.inf)


@pytest.mark.parametrize("runs", [6, 10, 16])
def test_intervals_hold_the_median_whatever_ends_the_observation(runs: int) -> None:
    generator = np.random.default_rng(runs)
    trials, held = 200, 0
    for _ in range(trials):
        times = np.ceil(20 * generator.lognormal(0, 0.4, runs))  # the median is 20, and evaluations are at whole steps
        seen = (times <= 26) & ((times <= 20) | (generator.random(runs) < 0.5))  # half of the slow runs are stopped
        found = survival.median(np.where(seen, times, np.minimum(times, 26) - 1), seen)
        held += found.low <= 20 <= found.high
    assert held >= 0.94 * trials
