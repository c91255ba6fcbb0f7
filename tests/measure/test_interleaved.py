"""Interleaved timing: the order of contestants and steps, and the seconds of steps and of their parts."""

from __future__ import annotations

import itertools

import pytest
from helpers.interleaved_timers import simulated_timer


def test_all_contestants_take_the_same_steps_in_a_random_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = (0.02, 0.03, 0.04)
    timer, log = simulated_timer(monkeypatch, [itertools.repeat(value) for value in seconds], data_seconds=0.001)
    timer.warm_up()
    assert timer.steps_per_block == 3  # of 0.04 s, so that a block of the slowest contestant lasts at least 0.1 s
    assert [(name, step) for name, step, _ in log] == [(name, step) for name in "abc" for step in range(3)]
    log.clear()
    for timed in itertools.islice(timer.rounds(), 12):
        assert timed.seconds == pytest.approx(seconds)
        assert timed.data_seconds == pytest.approx(0.001)
    orders = set()
    for number in range(12):
        round_log = log[9 * number : 9 * number + 9]
        steps = [3 + 3 * number + i for i in range(3)]
        orders.add("".join(name for name, _, _ in round_log[::3]))
        assert sorted(name for name, _, _ in round_log) == sorted("abc" * 3)
        assert [(step, batch) for _, step, batch in round_log] == [(step, [f"batch {step}"]) for step in steps] * 3
    assert len(orders) > 3
    assert {"".join(sorted(order)) for order in orders} == {"abc"}


def test_seconds_of_parts_are_summed_by_name_within_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, _ = simulated_timer(monkeypatch, [itertools.cycle([0.1, 0.2, 0.6]), itertools.repeat(0.4)])
    parts = timer.parts(3)  # steps of 0.1, 0.2 and 0.6 s, of which the median is used
    assert [list(seconds) for seconds in parts] == [["forward", "backward"]] * 2
    assert [seconds["forward"] for seconds in parts] == pytest.approx([0.05, 0.1])
    assert [seconds["backward"] for seconds in parts] == pytest.approx([0.15, 0.3])
