"""The lock of this machine: while one process measures times, no other one measures, and campaign workers pause.

There are two files, which all processes of this user on this machine share. The process that measures locks
``measuring.lock``. Each worker checks this file before each step, and shares a lock of ``working.lock`` while it
trains. The process that measures also locks ``working.lock``, for which it waits until all workers have paused. The
kernel frees the locks of a process that dies. ``measuring.lock`` holds id and command of the last one.

The files are in the folder of temporary files, not in XDG_RUNTIME_DIR: that is removed when the user logs out, even if
workers go on, and processes that cron or a container starts lack it. Processes with different TMPDIR do not meet.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from rmsexp.system import lock
from rmsexp.system.files import private_folder
from rmsexp.system.lock import try_to_lock

FOLDER = Path(tempfile.gettempdir(), f"rmsexp-{os.geteuid()}")
MEASURING, WORKING = "measuring.lock", "working.lock"
PATIENCE = 10  # number of polls before a line reports the waiting
LONGEST_COMMAND = 100  # characters of the command of a process that measures, in messages

Report = Callable[[str], None]


@contextmanager
def measuring(report: Report) -> Iterator[None]:
    """Inside the context, no other process of this user measures on this machine, and campaign workers pause.

    Wait for this at the beginning; ``report`` gets a line if that takes more than a second, or if the machine's folder
    for temporary files cannot have locks. Then the context runs without them.
    """
    with ExitStack() as stack:
        try:
            own = stack.enter_context(_open(MEASURING))
            _wait(own, fcntl.LOCK_EX, lambda: report(f"waiting for {_owner(own)}"), PATIENCE)
            own.truncate(0)
            own.write(f"{os.getpid()} ({shlex.join(sys.orig_argv)[:LONGEST_COMMAND]})")
            own.flush()
            workers = stack.enter_context(_open(WORKING))
            pausing = "waiting until the campaign workers on this machine pause"
            _wait(workers, fcntl.LOCK_EX, lambda: report(pausing), PATIENCE)
        except OSError as error:
            report(f"warning: campaign workers on this machine do not pause for this measurement ({error})")
        yield


@contextmanager
def working(report: Report) -> Iterator[Pause]:
    """Inside the context, this process is a campaign worker; the trainer of its run gets the :class:`Pause`."""
    pause = Pause()
    try:
        pause.wait(report)
        yield pause
    finally:
        pause.close()


class Pause:
    """Tells a campaign worker when to pause, and waits meanwhile. Made by :func:`working`."""

    def __init__(self) -> None:
        self._working: IO[str] | None = None
        self._off = False  # whether there are no locks here

    def is_due(self) -> bool:
        """Return whether :meth:`wait` must be called, because somebody measures. Takes some 40 µs."""
        if self._working is None:
            return False
        with _open(MEASURING) as measuring:
            return not try_to_lock(measuring, fcntl.LOCK_SH)

    def wait(self, report: Report) -> None:
        """Let others measure until nobody does. Without locks, never pause again."""
        if self._off:
            return
        self.close()
        try:
            with _open(MEASURING) as measuring:
                if not try_to_lock(measuring, fcntl.LOCK_SH):
                    begun = time.monotonic()
                    _wait(measuring, fcntl.LOCK_SH, lambda: report(f"paused for {_owner(measuring)}"))
                    report(f"going on after a pause of {time.monotonic() - begun:.0f} s")
                self._working = _open(WORKING)
                _wait(self._working, fcntl.LOCK_SH)
        except OSError as error:
            self._off = True
            self.close()
            report(f"warning: this worker does not pause while others measure on this machine ({error})")

    def close(self) -> None:
        """Free the lock."""
        if self._working is not None:
            self._working.close()
        self._working = None


def _open(name: str) -> IO[str]:
    return (private_folder(FOLDER) / name).open("a+")


def _wait(file: IO[str], kind: int, waiting: Callable[[], None] = lambda: None, patience: int = 0) -> None:
    """Lock a file. Call ``waiting`` once if that takes more than ``patience`` polls."""
    polls = 0
    while not try_to_lock(file, kind):
        if polls == patience:
            waiting()
        polls += 1
        threading.Event().wait(lock.POLL_SECONDS)


def _owner(file: IO[str]) -> str:
    """Return the measurement of the process that has locked its file, by what it wrote there."""
    file.seek(0)
    return f"the measurement of process {file.read(LONGEST_COMMAND + 20) or 'unknown'}; goes on when that ends"
