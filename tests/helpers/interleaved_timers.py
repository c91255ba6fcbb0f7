"""Simulated contestants, a clock that advances only while they work, and the timer that times them."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from rmsexp.measure import interleaved
from rmsexp.measure.interleaved import InterleavedTimer

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

    def take(self, step: int, batches: Any, part: Any = nullcontext) -> None:
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
