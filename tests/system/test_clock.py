"""The clock of a run, and the date."""

import json
import re
from types import SimpleNamespace

import pytest

from rmsexp.system import clock
from rmsexp.system.clock import Clock


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list from which the clock takes its readings, the first entry first."""
    readings: list[float] = []
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: readings.pop(0)))
    return readings


def test_buckets_add_up(ticking: list[float]) -> None:
    watch = Clock()
    assert watch.seconds == dict.fromkeys(clock.BUCKETS, 0.0)
    lengths = {"warmup": 64, "data": 1, "train": 2, "eval": 4, "checkpoint": 8, "log": 16}
    for repeat in (1, 2):
        for name, length in lengths.items():
            ticking += [100.0, 100.0 + length]
            with watch.bucket(name):
                pass
        assert watch.seconds == {name: repeat * length for name, length in lengths.items()}
        assert watch.time == repeat * 3  # data and train


def test_a_clock_continues_from_saved_seconds_and_counts_time_that_an_exception_ends(ticking: list[float]) -> None:
    before = Clock()
    ticking += [10.0, 13.0, 5.0, 6.0]  # in the second process the readings start elsewhere
    with before.bucket("train"):
        pass
    after = Clock(json.loads(json.dumps(before.seconds)))
    with pytest.raises(KeyboardInterrupt), after.bucket("train"):
        raise KeyboardInterrupt
    assert (before.time, after.time) == (3.0, 4.0)


def test_now_is_utc_to_the_second() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", clock.now())
