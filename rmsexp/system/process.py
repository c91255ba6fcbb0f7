"""The process of a command: its output streams, the signals that stop it, and its worker processes.

This module imports only the standard library.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

Handler = Callable[[int, FrameType | None], None]

# Sent by Ctrl-C, by kill, when a terminal is closed, and by SLURM some time before it ends a job, if it is asked to.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


def open_output() -> None:
    """Write characters that the encoding of a standard stream lacks as "?"."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def is_command() -> bool:
    """Return whether this process is a command of this package, and no program or notebook that imports it."""
    by_name = Path(sys.argv[0] if sys.argv else "").name == "rmsexp"
    modules = (word.removeprefix("-m").partition(".")[0] for word in sys.orig_argv[1:])
    return by_name or (sys.argv[:1] == ["-m"] and "rmsexp" in modules)


# --- launchers: processes of one run, and processes that are started again


def rank_and_size() -> tuple[int, int]:
    """Return the number of this process among those that torchrun started for one run, and how many these are.

    A process that torchrun did not start is the only one: (0, 1).
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def slurm_job() -> str | None:
    """Return the id of the SLURM job that this process belongs to, or None. A requeued job keeps its id."""
    return os.environ.get("SLURM_JOB_ID")


def is_started_again(by: str) -> bool:
    """Return whether torchrun (``by="TORCHELASTIC"``) or SLURM (``by="SLURM"``) has started this command before."""
    return os.environ.get(f"{by}_RESTART_COUNT", "0") not in ("", "0")


# --- signals


def stopping_signals() -> list[signal.Signals]:
    """Return the signals that stop a run: ``STOPPING``, without those that must be left alone.

    These are SIGHUP and SIGUSR2 if they are ignored, as SIGHUP is after nohup; signals with a handler that Python did
    not install; and SIGTERM in a job of submitit, which ignores it, and requeues the job on SIGUSR2.
    """
    left = {number for number in STOPPING if signal.getsignal(number) is None}
    left |= {number for number in (signal.SIGHUP, signal.SIGUSR2) if signal.getsignal(number) == signal.SIG_IGN}
    if in_submitit():
        left.add(signal.SIGTERM)
    return [number for number in STOPPING if number not in left]


def in_submitit() -> bool:
    """Return whether submitit handles SIGUSR2 in this process. Processes that a job of submitit starts do not count."""
    return _module(signal.getsignal(signal.SIGUSR2)).startswith("submitit.")


def hand_on(signum: int | None) -> None:
    """If SIGUSR2 stopped a run, which is saved now, call the signal's present handler, unless it is of rmsexp.

    Raises: what it raises: SystemExit after submitit has requeued its job; UncompletedJobError if it does not.
    """
    handler = signal.getsignal(signal.SIGUSR2)
    if signum == signal.SIGUSR2 and callable(handler) and not _module(handler).startswith("rmsexp."):
        handler(signum, None)


def _module(handler: object) -> str:
    """Return the name of the module that defines the handler of a signal; "" if it is none of Python's."""
    return str(getattr(handler, "__module__", ""))


@contextmanager
def handling(handler: Handler, signals: Iterable[signal.Signals]) -> Iterator[None]:
    """Call ``handler`` for these signals inside the context; outside the main thread, change nothing."""
    if threading.current_thread() is not threading.main_thread():  # Python handles signals only in the main thread
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class Interrupted(BaseException):
    """A signal asked the process to stop. ``signum``: the signal's number; the exit status is 128 + signum.

    Like KeyboardInterrupt this is no Exception, so that no library's ``except Exception`` discards it.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


class Interrupt:
    """While installed, the first stopping signal raises :class:`Interrupted`: at once, or after :meth:`deferred`.

    The signals are those of :func:`stopping_signals`. Further ones are ignored, as most come twice: from a terminal and
    from the process of a sweep or torchrun, from the shell and the kernel when a terminal is closed, from timeout(1)
    and SLURM to a process and to its group. ``received``: the number of the signal, or None.
    """

    def __init__(self) -> None:
        self._deferred = 0
        self.received: int | None = None

    def install(self) -> AbstractContextManager[None]:
        return handling(self._handle, stopping_signals())

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Delay the exception for a signal to the end of the outermost such context."""
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1
        if self.received is not None and not self._deferred:
            raise Interrupted(self.received)

    def _handle(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.received is None:
            self.received = signum
            if not self._deferred:
                raise Interrupted(signum)


def ending_on_signals() -> AbstractContextManager[None]:
    """Let the signals that stop a run end the process inside the context, by SystemExit, so that it can clean up.

    Signals for which there is a handler are left to it.
    """

    def end(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise SystemExit(128 + signum)

    return handling(end, [number for number in stopping_signals() if not callable(signal.getsignal(number))])


# --- worker processes


def start_worker(worker: BaseProcess) -> None:
    """Start a worker process, for which signals wait until it calls :func:`follow_parent`."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # otherwise ``start`` would start it, and Python 3.11 unblocks the signals then
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        worker.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def follow_parent() -> None:
    """In a worker process, send this process SIGTERM when its parent process has ended.

    Until then SIGINT and SIGHUP are ignored here: those of a terminal reach the parent, too, which stops its workers.
    In every process, the signals that :func:`start_worker` blocked are unblocked. Repeated calls do nothing.
    """
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None and parent.pid is not None:
        for number in {signal.SIGINT, signal.SIGHUP} & set(stopping_signals()):
            signal.signal(number, lambda *_: None)
        threading.Thread(target=_follow, args=(parent.pid,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        threading.Event().wait(1)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
