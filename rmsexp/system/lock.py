"""A lock that lets only one process at a time write a run. It imports nothing that takes time to import."""

from __future__ import annotations

import fcntl
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rmsexp.system.file_lock import NoLocksError, try_to_lock
from rmsexp.system.regular_file import open_regular

LOOKS, LOOK_SECONDS = 4, 0.05  # repeated tries to lock, and the time before each


class RunLockedError(RuntimeError):
    """Another process is writing this run, or may do so."""


class Lock:
    """The lock of the run in the folder ``run``: a lock of the file ``path``, which the kernel frees if a process dies.

    The file is never deleted. If somebody deletes it, a second process could lock a new file of that name; the process
    that has locked the deleted file learns of this from :meth:`check`.
    """

    def __init__(self, path: Path, run: Path) -> None:
        self.path, self._run = path, run
        self._descriptor: int | None = None  # of the file, while this object holds the lock

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock inside the context.

        Raises: RunLockedError if another process holds it; NoLocksError; OSError if it cannot be locked or written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            opened = open_regular(self.path, "a+")
        except OSError as error:
            what = "be written" if self.path.parent.is_dir() else "be made"
            message = f"{self.path.parent} cannot {what} ({error.strerror or error}); results=DIR names another folder"
            raise type(error)(message) from None
        with opened as file:
            if not self._try(file):
                file.seek(0)
                owner = file.read(300).strip() or "unknown"
                raise RunLockedError(
                    f"{self._run} is being written by another process (id {owner}); "
                    "wait for it, or choose another seed or results folder"
                )
            self._descriptor = file.fileno()
            try:
                self.check()
                file.truncate(0)
                file.write(f"{os.getpid()} on {platform.node()}")
                file.flush()
                yield
            finally:
                self._descriptor = None

    def _try(self, file: IO[str]) -> bool:
        """Lock the file exclusively; return whether that worked, maybe after others have looked at it."""
        for _ in range(LOOKS):  # is_held locks the file for a moment
            if try_to_lock(file, fcntl.LOCK_EX):
                return True
            threading.Event().wait(LOOK_SECONDS)
        return try_to_lock(file, fcntl.LOCK_EX)

    def check(self) -> None:
        """Check that the lock, if this object holds it, still excludes other processes.

        Raises: RunLockedError if the file was deleted or replaced.
        """
        if self._descriptor is None:
            return
        try:
            same = os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        except FileNotFoundError:
            same = False
        if not same:
            raise RunLockedError(
                f"the lock {self.path} was deleted or replaced, so another process may write the run; "
                "this process writes no more; repeat the command to continue"
            )

    def is_held(self) -> bool:
        """Return whether a living process, possibly this one, holds the lock."""
        try:
            file = open_regular(self.path, "r")
        except FileNotFoundError:
            return False
        with file:
            try:
                return not try_to_lock(file, fcntl.LOCK_SH)
            except NoLocksError:  # then no process can hold one
                return False
