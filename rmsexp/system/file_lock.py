"""Locks of files, which the kernel frees if a process dies.

The library filelock takes them with flock; its soft locks, files that a killed process leaves behind, are not used. It
has no shared locks, so :func:`try_to_lock` takes those, and shows whether a lock is held.

filelock is imported when the first lock is taken; commands that only read do not need it.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rmsexp.system.files import check_regular

# Waiting polls: in a blocking flock, a signal that another thread receives would not reach Python's handler.
POLL_SECONDS = 0.1


@contextmanager
def locked(
    path: Path,
    waiting: Callable[[], None] = lambda: None,
    patience: float = 0.0,
    on_acquired: Callable[[int], None] | None = None,
) -> Iterator[None]:
    """Hold the lock of a file inside the context. Create the file, and its folder, if they are missing.

    ``waiting``: is called once if another process still holds the lock after ``patience`` seconds; it may raise an
    error, and else the waiting goes on. ``on_acquired``: is called with the descriptor of the file once it is locked.

    Raises: OSError if the file cannot be opened or locked, as on a file system without locks.
    """
    from filelock import FileLock, Timeout

    check_regular(path)
    lock = FileLock(
        path, thread_local=False, poll_interval=POLL_SECONDS, fallback_to_soft=False, on_acquired=on_acquired
    )
    try:
        try:
            lock.acquire(timeout=patience)
        except Timeout:
            waiting()
            lock.acquire()
    except OSError as error:
        error.filename = error.filename or str(path)  # flock does not name the file
        raise
    try:
        yield
    finally:
        lock.release()


def try_to_lock(file: IO[str], kind: int) -> bool:
    """Lock an open file without waiting. Return False if another process holds a lock that excludes this one.

    ``kind``: fcntl.LOCK_EX or fcntl.LOCK_SH. Raises: OSError if the lock fails for another reason.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
