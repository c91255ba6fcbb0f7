"""Turn Ctrl-C and SIGTERM into an exception, so that the run is saved before the process ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """A signal asked the process to stop. ``signum``: the signal's number; the exit status is 128 + signum.

    ``torn``: whether this was the second signal. It may have interrupted work that must not be interrupted, so the
    state may be inconsistent.
    """

    def __init__(self, signum: int, torn: bool = False) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum, self.torn = signum, torn


class Interrupt:
    """While installed, SIGINT and SIGTERM raise :class:`Interrupted`: at once, or at the end of :meth:`deferred`."""

    def __init__(self) -> None:
        self._deferred = 0
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
    def deferred(self) -> Iterator[None]:
        """Delay the exception for a signal to the end of the outermost such context. A second signal raises at once."""
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1
        if self._received is not None and not self._deferred:
            raise Interrupted(self._received)

    def _handle(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        again = self._received is not None
        self._received = signum
        if again or not self._deferred:  # a second signal is not deferred
            raise Interrupted(signum, torn=again)
