"""Make the C library reuse the memory of one step in the next.

By default glibc returns large blocks to the system when they are freed. The next step allocates new ones, which the
kernel fills with zeros page by page when they are first touched: thousands of page faults in every step.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from glibc's malloc.h

_keeps_freed = False


def keep_freed() -> None:
    """Make this process keep the memory that it frees from now on, for reuse. Without glibc this does nothing."""
    global _keeps_freed
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # take all memory from the heap, and never shrink the heap
        _keeps_freed = bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))


def keeps_freed() -> bool:
    """Return whether this process keeps the memory that it frees. The record has this value."""
    return _keeps_freed
