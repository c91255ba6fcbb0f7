"""The one place that reads the time."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rmsexp.record import BUCKETS, TIMED


class Stopwatch:
    """Seconds since it was made, on a monotonic clock."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start


class Clock:
    """Seconds in named buckets, on a monotonic clock; saved in checkpoints, so that pauses do not count.

    On an asynchronous device the split between ``data`` and ``train`` is host time; their sum between two
    synchronisations is exact.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(BUCKETS, 0.0)

    @contextmanager
    def bucket(self, name: str) -> Iterator[None]:
        """Adds the time spent inside, whatever way it is left."""
        watch = Stopwatch()
        try:
            yield
        finally:
            self.seconds[name] += watch.seconds

    @property
    def time(self) -> float:
        """The time axis of every curve, in seconds."""
        return sum(self.seconds[name] for name in TIMED)

    def load(self, seconds: Mapping[str, float]) -> None:
        self.seconds.update(seconds)


def now() -> str:
    """The date and time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
