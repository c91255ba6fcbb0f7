"""Ctrl-C and SIGTERM: the process saves the run, then ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """A signal asked the process to stop. ``signum``: its number; the exit status is 128 + signum.

    ``torn``: a second signal interrupted work that must not be interrupted, so the state may be inconsistent.
    """

    def __init__(self, signum: int, torn: bool = False) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum, self.torn = signum, torn


class Interrupt:
    """While it is installed, a signal raises :class:`Interrupted`: at once, or at the end of :meth:`held`."""

    def __init__(self) -> None:
        self._held = 0
        self._received: int | None = None

    @contextmanager
    def install(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # Python handles signals only in the main thread
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Do work that must not be interrupted: a signal is raised at its end."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if self._received is not None and not self._held:
            raise Interrupted(self._received)

    def _handle(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        again = self._received is not None
        self._received = signum
        if again or not self._held:  # a second signal does not wait
            raise Interrupted(signum, torn=again)
