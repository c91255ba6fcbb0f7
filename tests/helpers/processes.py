"""Whether other processes run, and waiting for what they do."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path


def is_running(pid: int) -> bool:
    """Return whether a process exists that has not ended: one whose parent has not read its status has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: int = 60) -> bool:
    """Wait until a condition holds, for at most so many seconds; return whether it does."""
    for _ in range(seconds * 20):
        if condition():
            return True
        signal.sigtimedwait([], 0.05)  # sleeps
    return False
