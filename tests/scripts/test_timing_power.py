"""The test of the timing on planted pairs: the order of its trials, how it goes on, and its slowed model."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
import timing_power

from rmsexp.measure import steps


def test_the_second_model_is_slowed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sleeper:
        def __call__(self, *_: Any) -> None:
            time.sleep(0.05)

    def make_contestants(*_: Any) -> steps.Contestants:
        return steps.Contestants(
            SimpleNamespace(contestants=[Sleeper(), Sleeper()]), {"second": None, "first": None}, None, {}
        )

    monkeypatch.setattr(steps, "make_contestants", make_contestants)
    monkeypatch.setattr(steps, "measure", lambda: steps.make_contestants().timer.contestants)
    second, first = timing_power.measure_slowed(0.5)
    assert isinstance(first, Sleeper)
    assert isinstance(second, timing_power.Slowed)
    start = time.perf_counter()
    second(0, [])
    assert time.perf_counter() - start >= 0.075
