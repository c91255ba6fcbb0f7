"""Stopwatch, clock, time spans and dates. All times and dates that are recorded are read in this module."""

import datetime
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

BUCKETS = ("warmup", "data", "train", "eval", "checkpoint", "log")  # kinds of work whose time the clock adds up
TIMED = ("data", "train")  # the buckets whose sum is the time axis of every curve


class Stopwatch:
    """Counts the seconds since it was created, on a monotonic clock, also in other processes to which it is passed."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start


class Clock:
    """Adds up seconds in named buckets, on a monotonic clock. ``seconds``: initial values, from a checkpoint.

    Checkpoints save the buckets, so the time between two processes of a run is excluded. On an asynchronous device
    ``data`` and ``train`` are each the host's time; only their sum between two synchronisations is exact.
    """

    def __init__(self, seconds: Mapping[str, float] | None = None) -> None:
        self.seconds = dict.fromkeys(BUCKETS, 0.0) | dict(seconds or {})

    @contextmanager
    def bucket(self, name: str) -> Iterator[None]:
        """Add the time spent inside the context to the bucket ``name``, also if an exception ends the context."""
        watch = Stopwatch()
        try:
            yield
        finally:
            self.seconds[name] += watch.seconds

    @property
    def time(self) -> float:
        """Return the seconds in the buckets ``TIMED``, which are the time axis of every curve."""
        return sum(self.seconds[name] for name in TIMED)


def span(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=seconds)


def timestamp(text: str) -> float:
    """Convert a date and time that :func:`now` returned to seconds since 1970."""
    return datetime.datetime.fromisoformat(text).timestamp()


def now() -> str:
    """Return the date and time in UTC, to the second, in ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
