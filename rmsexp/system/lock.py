"""Locks of files, which the kernel frees if a process dies, and the lock that lets one process at a time write a run.

The library filelock takes them with flock; its soft locks, files that a killed process leaves behind, are not used. It
is imported when the first lock is taken; commands that only read do not need it.
"""

import fcntl
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rmsexp.system.command_line import ReportedError
from rmsexp.system.files import check_regular, open_regular

PATIENCE = 0.2  # seconds of trying: is_locked in another process takes a shared lock for a moment


@contextmanager
def locked(
    path: Path,
    waiting: Callable[[], None] = lambda: None,
    patience: float = 0.0,
    on_acquired: Callable[[int], None] | None = None,
) -> Iterator[None]:
    """Hold the lock of a file inside the context. Create the file, and its folder, if they are missing.

    ``waiting``: is called once if another process still holds the lock after ``patience`` seconds. Unless it raises an
    error, waiting goes on without limit. ``on_acquired``: is called with the descriptor of the file once it is locked.

    Raises: OSError if the file cannot be opened or locked, as on a file system without locks.
    """
    from filelock import FileLock, Timeout

    check_regular(path)
    lock = FileLock(path, thread_local=False, fallback_to_soft=False, on_acquired=on_acquired)
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


def is_locked(path: Path) -> bool:
    """Return whether a living process, possibly this one, holds the lock of a file.

    A shared lock answers this: those who ask do not exclude each other, and the file may be read-only.
    """
    if not path.exists():
        return False
    with open_regular(path, "r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # the file system has no locks, so no process can hold one
            return False
        return False


class RunLockedError(ReportedError, RuntimeError):
    """Another process holds the lock of this run, or may: the lock file was deleted or replaced."""


class Lock:
    """The lock of the run in the folder ``run``: a lock of the file ``path``, which the kernel frees if a process dies.

    The file is never deleted. If somebody deletes it, a second process could lock a new file of that name; the process
    that has locked the deleted file learns of this from :meth:`check`.
    """

    def __init__(self, path: Path, run: Path) -> None:
        self.path, self._run = path, run
        self._locked: os.stat_result | None = None  # of the file, while this object holds the lock

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock inside the context.

        Raises: RunLockedError if another process holds it; OSError if the file cannot be locked or written.
        """

        def refuse() -> None:
            owner = self.path.read_text(errors="replace")[:300].strip() or "unknown"
            raise RunLockedError(
                f"{self._run} is being written by another process (id {owner}); "
                "wait for it, or choose another seed or results folder"
            ) from None

        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path, refuse, PATIENCE, self._sign))
            except OSError as error:
                problem = f"cannot be written or locked ({error.strerror or error})"
                raise type(error)(f"{self.path.parent} {problem}; results=DIR names another folder") from None
            stack.callback(setattr, self, "_locked", None)
            self.check()
            yield

    def _sign(self, descriptor: int) -> None:
        """Write into the locked file which process holds it."""
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} on {platform.node()}".encode())
        self._locked = os.fstat(descriptor)

    def check(self) -> None:
        """Check that the lock, if this object holds it, still excludes other processes.

        Raises: RunLockedError if the file was deleted or replaced.
        """
        if self._locked is None or (self.path.exists() and os.path.samestat(self._locked, self.path.stat())):
            return
        raise RunLockedError(
            f"the lock {self.path} was deleted or replaced, so another process may write the run; "
            "this process writes no more; repeat the command to continue"
        )
