"""Do work in a new process, and return its answer.

This module does not import torch, so that a process whose work does not need it starts quickly.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from signal import Signals
from types import ModuleType
from typing import Any

from rmsexp.system import process
from rmsexp.system.command_line import REPORTED, ReportedError, brief, memory_message
from rmsexp.system.machine_lock import Report

POLL_SECONDS = 0.5  # Waiting polls: in a blocking read, a signal that another thread receives would not be handled.

Work = Callable[..., dict[str, Any]]  # the last argument is a Report


class ProcessError(ReportedError):
    """A measuring process failed."""


def in_new_process(name: str, work: Work, arguments: tuple[Any, ...], report: Report) -> dict[str, Any]:
    """Return what ``work(*arguments, report)`` returns in a new process, which ends with this one at the latest.

    ``name``: the name of the process, for messages. The answer passes through JSON.

    Raises: ProcessError if it fails there, or if the process ends before.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # hides a warning of the profiler of memory
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_be_child, args=(sending, work, arguments))
    try:
        with without_main(), _spawning():
            process.start_worker(child)
        sending.close()  # so that the end of the child, which has the only copy left, is seen
        while True:
            while not receiving.poll(POLL_SECONDS):
                pass
            kind, value = json.loads(receiving.recv_bytes())
            if kind == "answer":
                return value
            if kind == "error":
                raise ProcessError(value)
            report(f"{name}: {value}")
    except EOFError:
        child.join()
        status = child.exitcode or 0  # minus the number of the signal that ended it
        hint = "; perhaps there was too little memory" if status == -Signals.SIGKILL else ""
        end = f"ended with exit status {status}" if status >= 0 else f"was ended by {Signals(-status).name}{hint}"
        raise ProcessError(f"{name} {end}") from None
    finally:
        if child.pid is not None:
            child.kill()
            child.join()
        receiving.close()


@contextmanager
def without_main() -> Iterator[None]:
    """Hide the main module, so that a new process does not import a program again that has no ``if __name__ == …``.

    Functions of the main module cannot be pickled inside.
    """
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _spawning() -> Iterator[None]:
    """Make "spawn" the start method inside: a new process takes over the default, and does not know joblib's "loky"."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("spawn", force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


def _be_child(sending: Connection, work: Work, arguments: tuple[Any, ...]) -> None:
    process.follow_parent()

    def send(kind: str, value: object) -> None:
        sending.send_bytes(json.dumps([kind, value]).encode())

    try:
        answer = work(*arguments, lambda text: send("report", text))
    except Exception as error:
        message = error if isinstance(error, REPORTED) else memory_message(error)
        if message is None:
            raise
        send("error", brief(message))
    else:
        send("answer", answer)
