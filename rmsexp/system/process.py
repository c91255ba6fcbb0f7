"""The process of a command: its output streams, the signals that stop it, and its worker processes.

This module imports only the standard library.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

Handler = Callable[[int, FrameType | None], None]

STREAMS = {"stdout": "standard output", "stderr": "standard error"}  # attribute of sys -> name in messages
# Sent by Ctrl-C, by kill, when a terminal is closed, and by SLURM some time before it ends a job, if it is asked to.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
TWICE = 0.2  # seconds; two SIGINTs within a shorter time are one Ctrl-C, as timeout(1) sends one to a process and group


# --- output


class Output:
    """Writes text to a stream until the stream fails, and discards all later text.

    ``failure``: the error with which the stream failed, or None. A character that the stream's encoding lacks is
    written as "?".
    """

    def __init__(self, stream: TextIO | None) -> None:
        # Python sets a standard stream to None if it is closed when the process starts.
        self.failure: Exception | None = ValueError("closed") if stream is None else None
        self._stream = stream or Path(os.devnull).open("w")  # noqa: SIM115

    def write(self, text: str) -> int:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._attempt(self._stream.write, text.encode(encoding, "replace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[..., object], *arguments: object) -> None:
        if self.failure is None:
            try:
                action(*arguments)
            except Exception as error:  # for example OSError, or ValueError if the stream has been closed
                self.failure = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def safe_output() -> Iterator[None]:
    """Keep failures of the standard streams, such as a closed pipe or a full disk, from ending what the context does.

    A stream that has failed stays silent after the context, too. A line on standard error reports a failure of standard
    output, unless its reader has ended or it was closed from the beginning.
    """
    before: dict[str, Any] = {name: getattr(sys, name) for name in STREAMS}
    outputs = {name: stream if isinstance(stream, Output) else Output(stream) for name, stream in before.items()}
    for name, output in outputs.items():
        setattr(sys, name, output)
    try:
        yield
    finally:
        for name, output in outputs.items():
            output.flush()
            expected = before[name] in (None, output) or isinstance(output.failure, BrokenPipeError)
            if output.failure is None:
                setattr(sys, name, before[name])
            elif name == "stdout" and not expected:
                print(f"rmsexp: {STREAMS[name]} cannot be written ({output.failure})", file=sys.stderr)


def output_failures() -> dict[str, str]:
    """Return the errors of the standard streams that have failed inside :func:`safe_output`, by the streams' names."""
    failures = {STREAMS[name]: getattr(getattr(sys, name), "failure", None) for name in STREAMS}
    return {name: str(failure) for name, failure in failures.items() if failure is not None}


def open_standard_streams() -> None:
    """Open /dev/null in place of closed standard streams, so that no file of a run is opened with their numbers.

    Whatever a library writes to standard error would otherwise go to that file.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest free number
        os.set_inheritable(number, True)
    os.close(number)


# --- figures


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


def local_rank() -> int:
    """Return the number of this process among those that torchrun started for one run on this host."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_restarted() -> bool:
    """Return whether torchrun (--max-restarts) has started this process's command before."""
    return _is_counted("TORCHELASTIC_RESTART_COUNT")


def slurm_job() -> str | None:
    """Return the id of the SLURM job that this process belongs to, or None. A requeued job keeps its id."""
    return os.environ.get("SLURM_JOB_ID")


def is_requeued() -> bool:
    """Return whether SLURM has started the job of this process before."""
    return _is_counted("SLURM_RESTART_COUNT")


def _is_counted(variable: str) -> bool:
    """Return whether a launcher has set the environment variable, its number of restarts, to more than 0."""
    return os.environ.get(variable, "0") not in ("", "0")


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
    """After a run was stopped by SIGUSR2 and saved, call the handler that was there before, unless it is of rmsexp.

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
    """Call ``handler`` for these signals inside the context, unless this is not the main thread."""
    if threading.current_thread() is not threading.main_thread():  # Python handles signals only in the main thread
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Let the signals that stop a run end the process inside the context, by SystemExit, so that it can clean up.

    Signals for which there is a handler are left to it.
    """

    def end(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise SystemExit(128 + signum)

    with handling(end, [number for number in stopping_signals() if not callable(signal.getsignal(number))]):
        yield


@contextmanager
def ctrl_c() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt inside the context, or at its end if a library has replaced the exception.

    Python drops the exception in finalisers, and goes on; Ctrl-C must then be pressed again.
    """
    pressed = False

    def press(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    with handling(press, [] if ignored else [signal.SIGINT]):
        try:
            yield
        finally:
            if pressed:
                raise KeyboardInterrupt


def end_during_imports(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Handle Ctrl-C while the modules of a command are imported: end the process without a traceback."""
    os.write(2, b"rmsexp: interrupted\n")
    os._exit(128 + signum)


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


_following = threading.Lock()  # locked once follow_parent has been called


def follow_parent() -> None:
    """In a worker process, send this process SIGTERM when its parent process has ended.

    Until then SIGINT and SIGHUP are ignored here: those of a terminal reach the parent, too, which stops its workers.
    In every process, the signals that :func:`start_worker` blocked are unblocked. Repeated calls do nothing else.
    """
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None and parent.pid is not None and _following.acquire(blocking=False):
        for number in {signal.SIGINT, signal.SIGHUP} & set(stopping_signals()):
            signal.signal(number, lambda *_: None)
        threading.Thread(target=_follow, args=(parent.pid,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def _follow(parent: int) -> None:
    try:
        ended = select.poll()
        ended.register(os.pidfd_open(parent), select.POLLIN)
        ended.poll()
    except (OSError, AttributeError):  # the process has ended already, or this is no Linux, or one older than 5.3
        while os.getppid() == parent:
            threading.Event().wait(1)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
