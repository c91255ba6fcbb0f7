"""Turn Ctrl-C, SIGTERM, SIGHUP and SIGUSR2 into an exception, so that the run is saved before the process ends."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rmsexp.system import process


class Interrupted(BaseException):
    """A signal asked the process to stop. ``signum``: the signal's number; the exit status is 128 + signum.

    Like KeyboardInterrupt this is no Exception, so that no library's ``except Exception`` discards it.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


class Interrupt:
    """While installed, the first stopping signal raises :class:`Interrupted`: at once, or after :meth:`deferred`.

    The signals are those of :func:`rmsexp.system.process.stopping_signals`. Further ones are ignored, as most come
    twice: from a terminal and from the process of a sweep or torchrun, from the shell and the kernel when a terminal is
    closed, from timeout(1) and SLURM to a process and to its group. ``received``: the number of the signal, or None.
    """

    def __init__(self) -> None:
        self._deferred = 0
        self.received: int | None = None

    @contextmanager
    def install(self) -> Iterator[None]:
        with process.handling(self._handle, process.stopping_signals()):
            yield

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
