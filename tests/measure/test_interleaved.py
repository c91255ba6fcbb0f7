"""Interleaved timing: the order of contestants and steps, and the seconds of steps and of their parts."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from rmsexp.config.timing import TimingConfig
from rmsexp.measure import interleaved, steps
from rmsexp.measure.interleaved import Budget, InterleavedTimer, Round, balanced
from rmsexp.measure.steps import measure_rounds
from rmsexp.rules.ratios import paired_ratio

Log = list[tuple[str, int, Any]]  # (name of the contestant, step, batches) for each step taken


class SimulatedClock:
    """A clock whose method ``stopwatch`` replaces ``rmsexp.system.clock.Stopwatch`` in the modules that measure."""

    def __init__(self) -> None:
        self.now = 0.0

    def stopwatch(self) -> Any:
        start = self.now
        return type("Watch", (), {"seconds": property(lambda _: self.now - start)})()


class SimulatedContestant:
    """A contestant that logs each step and advances the clock by the next of ``seconds``: 1/4 forward, 3/4 backward."""

    def __init__(self, clock: SimulatedClock, seconds: Iterator[float], log: Log, name: str) -> None:
        self.clock, self.seconds, self.log, self.name = clock, seconds, log, name

    def __call__(self, step: int, batches: Any, part: Any = nullcontext) -> None:
        self.log.append((self.name, step, batches))
        seconds = next(self.seconds)
        with part("forward"):
            self.clock.now += seconds / 4
        with part("backward"):
            self.clock.now += seconds / 2
        with part("backward"):
            self.clock.now += seconds / 4


def simulated_timer(
    monkeypatch: pytest.MonkeyPatch, seconds: Sequence[Iterator[float]], data_seconds: float = 0.0
) -> tuple[InterleavedTimer, Log]:
    """Return a timer of up to three contestants, called a, b and c, and the log of all their steps.

    ``seconds``: for each contestant, the seconds that its steps take. ``data_seconds``: the seconds that loading the
    batches of a step takes.
    """
    clock, log = SimulatedClock(), Log()
    monkeypatch.setattr(interleaved, "Stopwatch", clock.stopwatch)

    def batches(step: int) -> list[str]:
        clock.now += data_seconds
        return [f"batch {step}"]

    contestants = [SimulatedContestant(clock, values, log, name) for values, name in zip(seconds, "abc", strict=False)]
    timer = InterleavedTimer(contestants, batches, torch.device("cpu"), seed=0)
    monkeypatch.setattr(timer.contention, "probe", lambda: False)  # no round is left out because this machine is busy
    return timer, log


def test_all_contestants_take_the_same_steps_in_balanced_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = (0.02, 0.03, 0.04)
    timer, log = simulated_timer(monkeypatch, [itertools.repeat(value) for value in seconds], data_seconds=0.001)
    timer.warm_up()
    assert timer.steps_per_block == 3  # of 0.04 s, so that the slowest contestant's last at least 0.1 s
    assert [(name, step) for name, step, _ in log] == [(name, step) for name in "abc" for step in range(3)]
    log.clear()
    for timed in itertools.islice(timer.rounds(), 12):
        assert timed.seconds == pytest.approx(seconds)
        assert timed.data_seconds == pytest.approx(0.001)
    orders = []
    for number in range(12):
        round_log = log[12 * number : 12 * number + 12]
        steps = [3 + 4 * number + i for i in range(4)]  # the first of them does not count
        orders.append("".join(name for name, _, _ in round_log[::4]))
        assert sorted(name for name, _, _ in round_log) == sorted("abc" * 4)
        assert [(step, batch) for _, step, batch in round_log] == [(step, [f"batch {step}"]) for step in steps] * 3
    assert len(set(orders)) > 3
    for square in [orders[start : start + 3] for start in range(0, 12, 3)]:
        assert all(sorted(line) == list("abc") for line in (*square, *zip(*square, strict=True)))


def test_a_round_after_a_spike_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, log = simulated_timer(monkeypatch, [itertools.repeat(0.1)] * 2)
    spikes = iter([False, True, False])
    monkeypatch.setattr(timer.contention, "probe", lambda: next(spikes))
    assert len(list(itertools.islice(timer.rounds(), 2))) == 2
    assert sorted({step for _, step, _ in log}) == [0, 1, 2, 3, 8, 9, 10, 11]


def test_the_first_step_of_a_block_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = itertools.chain([0.3, 0.2, 0.2], itertools.cycle([9.0, 0.1, 0.2, 0.3]))
    timer, log = simulated_timer(monkeypatch, [blocks, itertools.repeat(0.1)])
    timer.warm_up()
    assert timer.steps_per_block == 3  # also of slow steps
    for timed in itertools.islice(timer.rounds(), 3):
        assert timed.seconds == pytest.approx((0.2, 0.1))
    assert len(log) == 2 * (3 + 3 * 4)


def test_seconds_of_parts_are_summed_by_name_within_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = itertools.chain.from_iterable([9.0, *[seconds] * 3] for seconds in (0.1, 0.2, 0.6))
    timer, _ = simulated_timer(monkeypatch, [blocks, itertools.repeat(0.4)])
    parts = timer.parts(3)  # blocks of steps of 0.1, 0.2 and 0.6 s, of which the median is used
    assert [list(seconds) for seconds in parts] == [["forward", "backward"]] * 2
    assert [seconds["forward"] for seconds in parts] == pytest.approx([0.05, 0.1])
    assert [seconds["backward"] for seconds in parts] == pytest.approx([0.15, 0.3])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_every_contestant_is_equally_often_at_each_position_and_after_each_other(n: int) -> None:
    squares = 2 if n % 2 else 1
    orders = [balanced(n, place, 7, "round") for place in range(4 * n)]
    for start in range(0, 4 * n, n):
        square = orders[start : start + n]
        assert all(sorted(line) == list(range(n)) for line in (*square, *zip(*square, strict=True)))
    for start in range(0, 4 * n, squares * n):
        neighbours = Counter(
            pair for order in orders[start : start + squares * n] for pair in itertools.pairwise(order)
        )
        assert neighbours == dict.fromkeys(itertools.permutations(range(n), 2), squares)


def test_orders_depend_on_seed_name_and_square() -> None:
    def sequence(seed: int, name: str, first: int = 0) -> list[list[int]]:
        return [balanced(4, place, seed, name) for place in range(first, first + 4)]

    assert sequence(1, "round") == sequence(1, "round")
    assert len({str(each) for each in (sequence(1, "round"), sequence(2, "round"), sequence(1, "parts"))}) == 3
    assert sequence(1, "round") != sequence(1, "round", 4)
    assert len({tuple(balanced(4, 0, seed, "round")) for seed in range(200)}) == 24


# --- when measuring stops


def noisy(seconds: float, deviation: float, seed: int) -> Iterator[float]:
    """Yield normally distributed times of mean ``seconds``; ``deviation`` is the relative standard deviation."""
    rng = np.random.default_rng(seed)
    return (seconds * float(1 + deviation * rng.standard_normal()) for _ in itertools.count())


def measure(
    timer: InterleavedTimer, seconds: float = 100.0, target_width: float = 0.02, after: int = 0
) -> tuple[list[Round], str]:
    """Measure for ``seconds`` at most. ``after``: number of blocks of each contestant that will follow."""
    timer.warm_up()
    options, budget = TimingConfig(reference="a", target_width=target_width), Budget(interleaved.Stopwatch(), seconds)
    return measure_rounds(timer.rounds(), ["a", "b"], options, budget, print, after)


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
        assert max((ratio.high - ratio.low) / ratio.ratio for ratio in ratios) <= 0.03
        assert sum(ratio.low < slowdown < ratio.high for ratio in ratios) >= 0.9 * trials
        assert all(ratio.low > 1 for ratio in ratios) == (slowdown > 1)


def test_measuring_stops_when_the_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timer, _ = simulated_timer(monkeypatch, [noisy(0.1, 0.3, 0), noisy(0.1, 0.3, 1)])
    rounds, stopped = measure(timer, seconds=10, target_width=0.001)
    assert stopped == "budget spent"
    assert 10 <= len(rounds) <= 14  # of two blocks of four steps of 0.1 s
    assert re.search(r"rounds, b \d\.\d{3}; widest interval \d\.\d{3} \(target 0.001\)", capsys.readouterr().out)
    slow, _ = simulated_timer(monkeypatch, [noisy(100, 0.3, 0), noisy(100, 0.3, 1)])
    assert len(measure(slow, seconds=10)[0]) == 2  # a single round gives no interval


def test_the_budget_has_room_for_the_blocks_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, _ = simulated_timer(monkeypatch, [itertools.repeat(0.1)] * 2)
    monkeypatch.setattr(steps, "FEWEST_ROUNDS", 1000)
    assert len(measure(timer, seconds=16.1, after=5)[0]) == 15  # of 0.8 s; 20 such fit in 16.1 s
