"""Notice that a process of a run does not answer, for example because its host was switched off."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rmsexp.system.clock import Stopwatch
from rmsexp.system.command_line import report

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # torch.distributed does not export it to type checkers

BEAT_SECONDS = 1.0
LIMIT_SECONDS = 20.0  # a process that has not beaten for so long is lost
DONE = "done"  # the last beat of a process that has left the run in order
NO_STORE = "the store that torchrun keeps for the processes of the run does not answer"


class Heartbeat:
    """A thread that writes beats to the store of the run's processes and reads those of others, and one that watches.

    If the host of the store was switched off, the store neither answers nor fails, and the first thread waits for ever.

    Process 0 reads the beats of all others, which read those of process 0. If a process is lost, this one ends with a
    message: if it waits for the others, after a call of ``on_loss``; otherwise :meth:`waiting` raises RuntimeError when
    it begins. A process that does not begin to wait for ``LIMIT_SECONDS`` ends without a call.

    ``on_loss``: is called in the second thread, while the main thread waits for a message; None: nothing is called.
    ``lost``: a message about a process that is lost, or None.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self._rank = store, rank
        self._watched = range(1, size) if rank == 0 else range(1)
        self._beats: dict[int, tuple[str, Stopwatch]] = {}  # the last beat of each watched process, and its age
        self.on_loss: Callable[[], None] | None = None
        self.lost: str | None = None
        self._is_waiting = False
        self._waking = threading.Lock()  # held by the thread that watches while it ends the process
        self._stopping = threading.Event()
        self._answered = Stopwatch()  # since the store has answered the last beat
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._run, self._watch)]

    def start(self) -> None:
        self._beats = {rank: ("", Stopwatch()) for rank in self._watched}
        self._answered = Stopwatch()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Tell the other processes that this one leaves the run, unless one is lost."""
        is_first_call = not self._stopping.is_set()
        self._stopping.set()
        for thread in self._threads if is_first_call else []:
            # the first thread may wait for ever for a store that does not answer
            thread.join(2 * BEAT_SECONDS if self.lost == NO_STORE else LIMIT_SECONDS)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside the context, this process waits for messages. Raises: RuntimeError if a process is lost."""
        if self.lost is not None:
            raise RuntimeError(self.lost)
        self._is_waiting = True
        try:
            yield
        finally:
            with self._waking:
                self._is_waiting = False

    def left(self) -> list[int]:
        """Return the watched processes that have left the run."""
        return [rank for rank, (beat, _) in self._beats.items() if beat == DONE]

    def silent(self) -> list[int]:
        """Return the watched processes that have missed two beats, after waiting so long that one can tell."""
        threading.Event().wait(3 * BEAT_SECONDS)
        return [rank for rank, (beat, age) in self._beats.items() if beat != DONE and age.seconds > 2 * BEAT_SECONDS]

    def _run(self) -> None:
        number = 0
        while self.lost is None and not self._stopping.wait(BEAT_SECONDS):
            number += 1
            self.lost = self._beat(str(number)) or self.lost
            self._answered = Stopwatch()
        if self.lost is None:
            self._beat(DONE)

    def _watch(self) -> None:
        while not self._stopping.wait(BEAT_SECONDS):
            if self.lost is None and self._answered.seconds > LIMIT_SECONDS:
                self.lost = NO_STORE
            if self.lost is not None:
                self._end(self.lost)
                return

    def _beat(self, beat: str) -> str | None:
        """Write a beat and read the others'. Return a message if a process, or torchrun's store, is lost."""
        try:
            self._store.set(f"beat{self._rank}", beat)
            for rank in self._watched:
                key, (last, age) = f"beat{rank}", self._beats[rank]
                found = self._store.get(key).decode() if self._store.check([key]) else ""
                if found != last:
                    self._beats[rank] = found, Stopwatch()
                elif age.seconds > LIMIT_SECONDS and last != DONE:
                    return f"process {rank} of the run has not answered for {LIMIT_SECONDS:.0f} seconds"
        except RuntimeError:
            return NO_STORE
        return None

    def _end(self, lost: str) -> None:
        watch = Stopwatch()
        while not self._stopping.wait(0.1) and watch.seconds < LIMIT_SECONDS:
            with self._waking:
                if self._is_waiting:
                    _exit(lost, self.on_loss)
        if not self._stopping.is_set():
            _exit(f"{lost}, and this one computes without a pause, so the last checkpoint remains", None)


def _exit(lost: str, on_loss: Callable[[], None] | None) -> None:
    """End this process with a message, after a call of ``on_loss``, whatever that raises."""
    try:
        report(f"{lost}; repeat the command to continue the run")
        if on_loss is not None:
            try_to_save(on_loss)
    finally:
        os._exit(1)


def try_to_save(on_loss: Callable[[], None]) -> None:
    """Call ``on_loss``, which saves the last step, and report any error that it raises."""
    try:
        on_loss()
    except Exception as error:
        report(f"the last step could not be saved ({error or type(error).__name__}); the last checkpoint remains")
