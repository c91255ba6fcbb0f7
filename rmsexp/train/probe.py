"""A probe of fixed work, whose time depends only on the machine and on what else it does: arithmetic, then a sweep.

The arithmetic divides numbers that fit into the first-level cache. The sweep reads memory that does not fit into a
cache of up to 128 MiB; of a larger cache, it may find a part of it there. NumPy does both on the calling thread.
Together they take about three milliseconds.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from rmsexp.system import machine
from rmsexp.system.clock import Stopwatch

DIVISIONS, NUMBERS = 800, 2048  # times that each of the numbers is divided; 2048 float64 are 16 KiB
SWEPT = 64 << 20  # bytes that a probe reads
# The buffer is twice the largest cache, because a cache may keep a part of a buffer that is a little larger. Of a
# larger buffer, each probe reads the next part. Every process has a buffer, so its size has a limit. Between two sweeps
# of a part, other parts are read and steps are done, so that a larger cache, which others share, may keep little of it.
LARGEST_BUFFER = 4 * SWEPT
WORK = f"{DIVISIONS} x {NUMBERS} divisions, {SWEPT >> 20} MiB, numpy {np.__version__}"  # what the times depend on


class Times(NamedTuple):
    """Seconds of the two parts of a probe."""

    arithmetic: float
    memory: float


class Probe:
    """The memory of the probe, which is allocated once per process (see :func:`probe`)."""

    def __init__(self) -> None:
        parts = -(-2 * (machine.largest_cache() or 0) // SWEPT)
        size = min(max(1, parts) * SWEPT, LARGEST_BUFFER)
        # written with ones: the kernel maps pages that were never written to one page, which the cache holds
        self._buffer = np.ones(size // 8).reshape(-1, SWEPT // 8)
        self._numbers = np.full(NUMBERS, 1.25)
        self._next = 0

    def take(self) -> Times:
        """Do the work once."""
        watch = Stopwatch()
        for _ in range(DIVISIONS):
            np.divide(1.0, self._numbers, out=self._numbers)
        arithmetic = watch.seconds
        self._buffer[self._next].max()
        self._next = (self._next + 1) % len(self._buffer)
        return Times(arithmetic, watch.seconds - arithmetic)


@cache
def probe() -> Probe:
    return Probe()
