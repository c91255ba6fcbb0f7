"""The test of the timing on planted pairs: the order of its trials, how it goes on, and its slowed model."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import timing_power

from rmsexp.measure import steps
from rmsexp.train import provenance, quiet


def trial(low: float, high: float) -> dict[str, Any]:
    identity = {"code": provenance.code(), "machine": quiet.machine_id(), "date": "2026-01-01"}
    identity |= {"commit": "abc", "dirty": False}
    found = {"ratio": (low * high) ** 0.5, "low": low, "high": high, "estimates": [1.0] * 6, "rounds": 120}
    return found | {"time_state": "clear", "stopped": "narrow enough"} | identity


def test_the_summary_counts_right_trials(capsys: pytest.CaptureFixture[str]) -> None:
    trials = [{"kind": "equal"} | trial(0.99, 1.01) for _ in range(54)]
    trials += [{"kind": "equal"} | trial(1.001, 1.02) for _ in range(6)]
    trials += [{"kind": "slowed"} | trial(0.9, 0.95) for _ in range(3)]  # excludes 1 on the wrong side
    trials += [{"kind": "slowed"} | trial(1.01, 1.05) for _ in range(17)]
    timing_power.summarise(trials)
    assert capsys.readouterr().out.splitlines() == [
        "equal  54 of 60 intervals (79 to 96 %) contain 1, as it should be; median width 0.0200",
        "slowed 17 of 20 intervals (62 to 97 %) exclude 1, NOT as it should be; median width 0.0400",
    ]


def test_the_second_model_is_slowed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sleeper:
        def take(self, *_: Any) -> None:
            time.sleep(0.05)

    def make_contestants(*_: Any) -> steps.Contestants:
        return steps.Contestants(
            SimpleNamespace(contestants=[Sleeper(), Sleeper()]), {"second": None, "first": None}, None
        )

    monkeypatch.setattr(steps, "make_contestants", make_contestants)
    monkeypatch.setattr(steps, "measure", lambda: steps.make_contestants().timer.contestants)
    second, first = timing_power.measure_slowed(0.5)
    assert isinstance(first, Sleeper)
    assert isinstance(second, timing_power.Slowed)
    start = time.perf_counter()
    second.take(0, [])
    assert time.perf_counter() - start >= 0.075
