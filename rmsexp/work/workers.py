"""Several workers of a campaign on this machine: processes whose lines begin with their number, as in "[2] "."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TextIO

from rmsexp.system import process
from rmsexp.system.command_line import report


def start(count: int, command: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Start ``count`` workers that call ``command`` with the words ``argv``, and wait until they end.

    ``command``: a function of a module, since the workers are new processes.

    Return 0, or the first exit status that is not 0. After a signal the workers save their runs and end, and the status
    is 128 + its number. If this process is killed, they do so, too.
    """
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_be_worker, args=(number, count, command, argv)) for number in range(1, count + 1)
    ]
    stopped = 0

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal stopped
        if not stopped:  # the workers are in process groups of their own, so they do not get signals of a terminal
            stopped = 128 + signum
            for worker in workers:
                if worker.pid is not None:
                    worker.terminate()

    with process.handling(stop, process.stopping_signals()):
        for worker in workers:
            if not stopped:
                worker.start()
        started = [worker for worker in workers if worker.pid is not None]
        for worker in started:
            if stopped:  # also the one that was being started when the signal came
                worker.terminate()
            worker.join()
    statuses = [worker.exitcode or 0 for worker in started]
    for number, status in enumerate(statuses, 1):
        if status < 0 and not stopped:
            report(f"worker {number} was ended by {signal.Signals(-status).name}; repeat the command to continue")
    return stopped or next((max(status, 1) for status in statuses if status), 0)


def _be_worker(number: int, count: int, command: Callable[[Sequence[str]], int], argv: Sequence[str]) -> None:
    os.setpgid(0, 0)
    sys.stdout, sys.stderr = (Labelled(stream, f"[{number}] ") for stream in (sys.stdout, sys.stderr))
    process.follow_parent(())
    raise SystemExit(command([*argv, "--of", str(count)]))


class Labelled(io.TextIOBase):
    """Writes complete lines to a stream, each with a label before it, so that lines of several processes do not mix."""

    def __init__(self, stream: TextIO, label: str) -> None:
        self._stream, self._label, self._rest = stream, label, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            process.write(self._stream, f"{self._label}{line}\n")
            self._stream.flush()  # one write to the file or pipe per line
        return len(text)

    def flush(self) -> None:
        self._stream.flush()
