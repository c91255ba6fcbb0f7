"""A lock that lets only one process at a time write a run. It imports nothing that takes time to import."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rmsexp.system.file_lock import locked, try_to_lock
from rmsexp.system.files import open_regular

PATIENCE = 0.2  # seconds of trying: is_held in another process takes a shared lock for a moment


class RunLockedError(RuntimeError):
    """Another process is writing this run, or may do so."""


class Lock:
    """The lock of the run in the folder ``run``: a lock of the file ``path``, which the kernel frees if a process dies.

    The file is never deleted. If somebody deletes it, a second process could lock a new file of that name; the process
    that has locked the deleted file learns of this from :meth:`check`.
    """

    def __init__(self, path: Path, run: Path) -> None:
        self.path, self._run = path, run
        self._locked: os.stat_result | None = None  # of the file, while this object holds the lock

    @contextmanager
    def held(self, waiting: Callable[[str], None] | None = None, patience: float = PATIENCE) -> Iterator[None]:
        """Hold the lock inside the context.

        If another process still holds it after ``patience`` seconds, ``waiting`` gets a sentence about that, and this
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
            try:
                stack.enter_context(locked(self.path, refuse_or_wait, patience, self._sign))
            except OSError as error:
                what = "be written or locked" if self.path.parent.is_dir() else "be made"
                message = (
                    f"{self.path.parent} cannot {what} ({error.strerror or error}); results=DIR names another folder"
                )
                raise type(error)(message) from None
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
        if self._locked is None:
            return
        try:
            same = os.path.samestat(self._locked, self.path.stat())
        except FileNotFoundError:
            same = False
        if not same:
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
