"""Ratios of simulated step times: their intervals contain the true ratio, and the measuring stops in time."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from helpers.interleaved_timers import simulated_timer

from rmsexp.config.timing import TimingConfig
from rmsexp.measure import steps
from rmsexp.measure.interleaved import InterleavedTimer, Round
from rmsexp.measure.options import Budget
from rmsexp.measure.steps import measure_rounds
from rmsexp.rules.ratios import paired_ratio


def noisy(seconds: float, deviation: float, seed: int) -> Iterator[float]:
    """Yield normally distributed times of mean ``seconds``; ``deviation`` is the relative standard deviation."""
    rng = np.random.default_rng(seed)
    return (seconds * float(1 + deviation * rng.standard_normal()) for _ in itertools.count())


def measure(
    timer: InterleavedTimer, seconds: float = 100.0, target_width: float = 0.02, after: int = 0
) -> tuple[list[Round], str]:
    """Measure for ``seconds`` at most. ``after``: number of blocks of each contestant that will follow."""
    timer.warm_up()
    options, budget = TimingConfig(reference="a", target_width=target_width), Budget(steps.Stopwatch(), seconds)
    return measure_rounds(timer.rounds(), ["a", "b"], options, budget, report, after)


def report(message: str) -> None:
    print(message, file=sys.stderr)


@pytest.mark.slow
def test_intervals_contain_the_true_ratio_and_exclude_1_for_a_slowdown(monkeypatch: pytest.MonkeyPatch) -> None:
    for slowdown, trials in ((1.0, 20), (1.05, 10)):
        ratios = []
        for seed in range(trials):
            seconds = [noisy(0.1, 0.02, 2 * seed), noisy(0.1 * slowdown, 0.02, 2 * seed + 1)]
            timer, _ = simulated_timer(monkeypatch, seconds)
            rounds, stopped = measure(timer, target_width=0.03)
            assert stopped == "narrow enough"
            reference, slowed = zip(*(timed.seconds for timed in rounds), strict=True)
            ratios.append(paired_ratio(slowed, reference))
        assert max(ratio.width / ratio.ratio for ratio in ratios) <= 0.03
        assert sum(ratio.low < slowdown < ratio.high for ratio in ratios) >= 0.9 * trials
        assert all(ratio.low > 1 for ratio in ratios) == (slowdown > 1)


def test_measuring_stops_when_the_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timer, _ = simulated_timer(monkeypatch, [noisy(0.1, 0.3, 0), noisy(0.1, 0.3, 1)])
    rounds, stopped = measure(timer, seconds=10, target_width=0.001)
    assert stopped == "budget spent"
    assert 10 <= len(rounds) <= 14  # of two blocks of four steps of 0.1 s
    assert re.search(r"rounds, b \d\.\d{3}; widest interval \d\.\d{3} \(target 0.001\)", capsys.readouterr().err)
    slow, _ = simulated_timer(monkeypatch, [noisy(100, 0.3, 0), noisy(100, 0.3, 1)])
    assert len(measure(slow, seconds=10)[0]) == 2  # a single round gives no interval


def test_the_budget_has_room_for_the_blocks_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, _ = simulated_timer(monkeypatch, [itertools.repeat(0.1)] * 2)
    monkeypatch.setattr(steps, "FEWEST_ROUNDS", 1000)
    assert len(measure(timer, seconds=16.1, after=5)[0]) == 15  # of 0.8 s; 20 such fit in 16.1 s
