"""Locks of files, which the kernel frees if a process dies, and the lock that lets only one process write a run.

They are those of flock. This module imports only the standard library.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from rmsexp.system.regular_file import check_regular, open_regular

POLL_SECONDS = 0.1
PATIENCE = 2  # number of polls for the lock of a run: is_held in another process takes a shared lock for a moment


class RunLockedError(RuntimeError):
    """Another process is writing this run, or may do so."""


@contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None, patience: int = 0) -> Iterator[IO[str]]:
    """Hold the lock of a file inside the context, whose value is the open file. Create it and its folder if missing.

    If the file is deleted or replaced while it is being locked, the next one of this name is locked.

    ``waiting``, ``patience``: see :func:`wait`.

    Raises: OSError if the file cannot be opened or locked, as on a file system without locks.
    """
    check_regular(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a+", errors="replace") as file:
            wait(file, fcntl.LOCK_EX, waiting, patience)
            try:
                if _is_at(path, file):
                    yield file
                    return
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # closing does not free it while a forked child has the file open


def wait(file: IO[str], kind: int, waiting: Callable[[], None] = lambda: None, patience: int = 0) -> None:
    """Lock an open file (``kind``: fcntl.LOCK_EX or fcntl.LOCK_SH).

    ``waiting``: is called once if another process still holds the lock after ``patience`` polls; it may raise an error,
    and else the waiting goes on.
    """
    # in a blocking flock, a signal that another thread receives would not reach Python's handler
    for polls in itertools.count():
        if try_to_lock(file, kind):
            return
        if polls == patience:
            waiting()
        threading.Event().wait(POLL_SECONDS)


def try_to_lock(file: IO[str], kind: int) -> bool:
    """Lock an open file as :func:`wait`, but return False if another process holds a lock that excludes this one.

    Raises: OSError if the lock fails for another reason.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        error.filename = str(file.name)  # flock does not name the file
        raise
    return True


def _is_at(path: Path, file: IO[str]) -> bool:
    """Return whether a path is still that of an open file, which may have been deleted or replaced."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


class Lock:
    """The lock of the run in the folder ``run``: a lock of the file ``path``.

    The file is never deleted. If somebody deletes it, a second process could lock a new file of that name; the process
    that has locked the deleted file learns of this from :meth:`check`.
    """

    def __init__(self, path: Path, run: Path) -> None:
        self.path, self._run = path, run
        self._file: IO[str] | None = None  # while this object holds the lock

    @contextmanager
    def held(self, waiting: Callable[[str], None] | None = None, patience: int = PATIENCE) -> Iterator[None]:
        """Hold the lock inside the context.

        If another process still holds it after ``patience`` polls, ``waiting`` gets a sentence about that, and this
        process waits on; without ``waiting`` it gives up.

        Raises: RunLockedError if it gives up; OSError if the file cannot be locked or written.
        """

        def refuse_or_wait() -> None:
            owner = self.path.read_text(errors="replace")[:300].strip() or "unknown"
            refusal = (
                f"{self._run} is being written by another process (id {owner}); "
                "wait for it, or choose another seed or results folder"
            )
            if waiting is None:
                raise RunLockedError(refusal) from None
            waiting(refusal)

        with ExitStack() as stack:
            stack.callback(setattr, self, "_file", None)
            try:
                self._file = stack.enter_context(locked(self.path, refuse_or_wait, patience))
                sign(self._file, f"{os.getpid()} on {platform.node()}")
            except OSError as error:
                what = "be written or locked" if self.path.parent.is_dir() else "be made"
                message = (
                    f"{self.path.parent} cannot {what} ({error.strerror or error}); results=DIR names another folder"
                )
                raise type(error)(message) from None
            yield

    def check(self) -> None:
        """Check that the lock, if this object holds it, still excludes other processes.

        Raises: RunLockedError if the file was deleted or replaced.
        """
        if self._file is not None and not _is_at(self.path, self._file):
            raise RunLockedError(
                f"the lock {self.path} was deleted or replaced, so another process may write the run; "
                "this process writes no more; repeat the command to continue"
            )

    def is_held(self) -> bool:
        """Return whether a living process, possibly this one, holds the lock.

        A shared lock answers this: those who ask do not exclude each other, and the file may be read-only.
        """
        try:
            file = open_regular(self.path, "r")
        except FileNotFoundError:
            return False
        with file:
            try:
                return not try_to_lock(file, fcntl.LOCK_SH)
            except OSError:  # the file system has no locks, so no process can hold one
                return False


def sign(file: IO[str], owner: str) -> None:
    """Write into a locked file which process holds the lock."""
    file.truncate(0)
    file.write(owner)
    file.flush()
