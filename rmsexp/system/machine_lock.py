"""The lock of this machine: while one process measures times, no other one measures, and campaign workers pause.

There are two files, which all processes of this user on this machine share. The process that measures locks
``measuring.lock``. Each worker checks this file before each step, and shares a lock of ``working.lock`` while it
trains. The process that measures also locks ``working.lock``, for which it waits until all workers have paused. The
kernel frees the locks of a process that dies. ``measuring.lock`` holds id, host, command and time of the last one.

The files are in the folder of temporary files, not in XDG_RUNTIME_DIR: that is removed when the user logs out, even if
workers go on, and processes that cron or a container starts lack it. Processes with different TMPDIR do not meet.

This module imports only modules of the standard library, ``file_lock`` and ``private``.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from rmsexp.system import file_lock
from rmsexp.system.file_lock import try_to_lock
from rmsexp.system.private import private_folder

FOLDER = Path(tempfile.gettempdir(), f"rmsexp-{os.geteuid()}")
MEASURING, WORKING = "measuring.lock", "working.lock"
PATIENCE = 10  # number of polls before a line reports the waiting
LONGEST_COMMAND = 100  # characters of the command of a process that measures, in messages

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
            _wait(own, fcntl.LOCK_EX, lambda measurement: report(f"waiting for {measurement}"), PATIENCE)
            own.truncate(0)
            command = shlex.join(sys.orig_argv)[:LONGEST_COMMAND]
            about = {"process": os.getpid(), "host": platform.node(), "since": time.time(), "command": command}
            own.write(json.dumps(about))
            own.flush()
            workers = stack.enter_context(_open(WORKING))
            pausing = "waiting until the campaign workers on this machine pause"
            _wait(workers, fcntl.LOCK_EX, lambda _: report(pausing), PATIENCE)
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
                begun = time.monotonic()
                _wait(self._measuring, fcntl.LOCK_SH, lambda measurement: report(f"paused for {measurement}"))
                report(f"going on after a pause of {time.monotonic() - begun:.0f} s")
            _wait(self._working, fcntl.LOCK_SH, lambda _: None)
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


def _wait(file: IO[str], kind: int, waiting: Callable[[str], None], patience: int = 0) -> None:
    """Lock a file. Report who measures, as the file says, if that takes long, and again if that process is stopped.

    The kernel frees the lock of a process that ends, however it ends, but not that of one that SIGSTOP or Ctrl-Z has
    stopped.
    """
    shown, polls = "", 0
    while not try_to_lock(file, kind):
        if polls >= patience and (owner := _owner(file)) != shown:
            shown = owner
            waiting(owner)
        polls += 1
        threading.Event().wait(file_lock.POLL_SECONDS)


def _owner(file: IO[str]) -> str:
    """Return the measurement of the process that has locked its file, by what it wrote there, and how to go on."""
    file.seek(0)
    try:
        about = json.loads(file.read(2000))
        process, host = int(about["process"]), str(about["host"])
        since = time.strftime("%H:%M:%S", time.localtime(about["since"]))
        text = f"the measurement of process {process} on {host} ({about['command']}, since {since})"
    except (ValueError, LookupError, TypeError, OverflowError, OSError):
        return "the measurement of an unknown process; goes on when that ends"
    if host == platform.node() and _is_stopped(process):
        return f"{text}; it is stopped: kill -CONT {process} lets it go on, kill -KILL {process} ends it"
    return f"{text}; goes on when that ends{f' (kill {process} ends it)' * (host == platform.node())}"


def _is_stopped(process: int) -> bool:
    """Return whether a process is stopped, as far as Linux says so."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False
