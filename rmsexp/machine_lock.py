"""The lock of this machine: while one process measures times, no other one measures, and campaign workers pause.

There are two files, which all processes of this user on this machine share. The process that measures locks
``measuring.lock``. Each worker checks this file before each step, and shares a lock of ``working.lock`` while it
trains. The process that measures also locks ``working.lock``, for which it waits until all workers have paused. The
kernel frees the locks of a process that dies.

The files are in the folder of temporary files, not in XDG_RUNTIME_DIR: that is removed when the user logs out, even if
workers go on, and processes that cron or a container starts lack it. Processes with different TMPDIR do not meet.

This module imports only modules of the standard library, ``file_lock`` and ``private``.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from rmsexp.file_lock import try_to_lock, wait_for_lock
from rmsexp.private import private_folder

FOLDER = Path(tempfile.gettempdir(), f"rmsexp-{os.geteuid()}")
MEASURING, WORKING = "measuring.lock", "working.lock"
PATIENCE = 10  # number of polls before a line reports the waiting

Report = Callable[[str], None]

_this_thread = threading.local()  # its attribute ``measures`` is there while this thread measures


@contextmanager
def measuring(report: Report) -> Iterator[None]:
    """Inside the context, no other process of this user measures on this machine, and campaign workers pause.

    Wait for this at the beginning; ``report`` gets a line if that takes more than a second, or if the machine's folder
    for temporary files cannot have locks. Then the context runs without them.
    """
    with ExitStack() as stack:
        _this_thread.measures = True
        stack.callback(delattr, _this_thread, "measures")
        try:
            own = stack.enter_context(_open(MEASURING))
            wait_for_lock(own, lambda: report(f"waiting until process {_owner(own)} has measured"), patience=PATIENCE)
            own.truncate(0)
            own.write(str(os.getpid()))
            own.flush()
            workers = stack.enter_context(_open(WORKING))
            wait_for_lock(
                workers, lambda: report("waiting until the campaign workers on this machine pause"), patience=PATIENCE
            )
        except OSError as error:
            report(f"warning: campaign workers on this machine do not pause for this measurement ({error})")
        yield


@contextmanager
def working(report: Report) -> Iterator[Pause]:
    """Inside the context, this process is a campaign worker; the trainer of its run gets the :class:`Pause`.

    It does not pause while its own thread measures, as a script does that times the trials of a plan.
    """
    pause = Pause()
    try:
        pause.wait(report)
        yield pause
    finally:
        pause.close()


class Pause:
    """Tells a campaign worker when to pause, and waits meanwhile. Made by :func:`working`."""

    def __init__(self) -> None:
        self._measuring: IO[str] | None = None
        self._working: IO[str] | None = None
        self._off = False  # whether there are no locks here

    def is_due(self) -> bool:
        """Return whether :meth:`wait` must be called: somebody measures, or a lock's file was deleted. Takes 4 µs."""
        if self._measuring is None or self._working is None:
            return False
        for file in (self._measuring, self._working):
            if not os.fstat(file.fileno()).st_nlink:  # for example by a program that removes old temporary files
                return True
        if not try_to_lock(self._measuring, fcntl.LOCK_SH):
            return True
        fcntl.flock(self._measuring, fcntl.LOCK_UN)
        return False

    def wait(self, report: Report) -> None:
        """Let others measure until nobody does; then lock newly opened files. Without locks, never pause again."""
        if self._off or hasattr(_this_thread, "measures"):
            return
        self.close()
        try:
            self._measuring, self._working = _open(MEASURING), _open(WORKING)
            if not try_to_lock(self._measuring, fcntl.LOCK_SH):
                report(f"paused while process {_owner(self._measuring)} measures on this machine")
                wait_for_lock(self._measuring, kind=fcntl.LOCK_SH)
                report("going on after the pause")
            wait_for_lock(self._working, kind=fcntl.LOCK_SH)
            fcntl.flock(self._measuring, fcntl.LOCK_UN)
        except OSError as error:
            self._off = True
            self.close()
            report(f"warning: this worker does not pause while others measure on this machine ({error})")

    def close(self) -> None:
        """Close the files, which frees their locks."""
        for file in (self._measuring, self._working):
            if file is not None:
                file.close()
        self._measuring = self._working = None


def _open(name: str) -> IO[str]:
    return (private_folder(FOLDER) / name).open("a+")


def _owner(file: IO[str]) -> str:
    """Return the id of the process that wrote it to a lock's file."""
    file.seek(0)
    return file.read(20).strip() or "unknown"
