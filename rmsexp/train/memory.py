"""Asks the C library to keep the memory of one step for the next.

By default glibc gives large pieces back to the system when they are freed. The next step takes new ones, which the
kernel fills with zeros, page by page, when they are first touched: thousands of page faults in every step.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from glibc's malloc.h

_kept = False


def keep() -> None:
    """From now on, for all of this process. Where the C library is not glibc, nothing happens."""
    global _kept
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # nothing is mapped apart from the heap, and the heap never shrinks
        _kept = bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, 2**31 - 1))


def kept() -> bool:
    """Whether this process keeps its memory; for the record."""
    return _kept
