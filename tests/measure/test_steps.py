"""Ratios of simulated step times: their intervals contain the true ratio, and the measuring stops in time."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from helpers.interleaved_timers import simulated_timer

from rmsexp.measure.interleaved import InterleavedTimer
from rmsexp.measure.options import TimingConfig
from rmsexp.measure.steps import Measurement, measure_ratios


def noisy(seconds: float, deviation: float, seed: int) -> Iterator[float]:
    """Yield normally distributed times of mean ``seconds``; ``deviation`` is the relative standard deviation."""
    rng = np.random.default_rng(seed)
    return (seconds * float(1 + deviation * rng.standard_normal()) for _ in itertools.count())


def measure(timer: InterleavedTimer, **options: float) -> Measurement:
    timer.warm_up()
    return measure_ratios(timer, ["a", "b"], TimingConfig(reference="a", **options), report)


def report(message: str) -> None:
    print(message, file=sys.stderr)


@pytest.mark.slow
def test_intervals_contain_the_true_ratio_and_exclude_1_for_a_slowdown(monkeypatch: pytest.MonkeyPatch) -> None:
    for slowdown, trials in ((1.0, 100), (1.05, 20)):
        ratios = []
        for seed in range(trials):
            seconds = [noisy(0.1, 0.02, 2 * seed), noisy(0.1 * slowdown, 0.02, 2 * seed + 1)]
            timer, _ = simulated_timer(monkeypatch, seconds)
            measurement = measure(timer, target_width=0.03)
            assert measurement.stopped == "narrow enough"
            assert measurement.ratios["a"] == (1, 1, 1)
            ratios.append(measurement.ratios["b"])
        assert max(ratio.width for ratio in ratios) <= 0.03
        assert sum(ratio.low < slowdown < ratio.high for ratio in ratios) >= 0.9 * trials
        assert all(ratio.low > 1 for ratio in ratios) == (slowdown > 1)


def test_measuring_stops_when_the_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timer, _ = simulated_timer(monkeypatch, [noisy(0.1, 0.3, 0), noisy(0.1, 0.3, 1)])
    measurement = measure(timer, target_width=0.001, budget=10)
    assert measurement.stopped == "budget spent"
    assert 40 <= len(measurement.rounds) <= 60
    assert "of 10 s: a 1.000, b " in capsys.readouterr().err
    slow, _ = simulated_timer(monkeypatch, [noisy(100, 0.3, 0), noisy(100, 0.3, 1)])
    assert len(measure(slow, budget=10).rounds) == 2  # a single round gives no interval
