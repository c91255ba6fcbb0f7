"""Turn Ctrl-C, SIGTERM, SIGHUP and SIGUSR2 into an exception, so that the run is saved before the process ends."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from types import FrameType

from rmsexp.system import process
from rmsexp.system.clock import Stopwatch


class Interrupted(BaseException):
    """A signal asked the process to stop. ``signum``: the signal's number; the exit status is 128 + signum.

    ``torn``: whether this was the second signal. It may have interrupted work that must not be interrupted, so the
    state may be inconsistent. Like KeyboardInterrupt this is no Exception, so that no library's ``except Exception``
    discards it.
    """

    def __init__(self, signum: int, torn: bool = False) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum, self.torn = signum, torn


class Interrupt:
    """While installed, each stopping signal raises :class:`Interrupted`: at once, or after :meth:`deferred`.

    The signals are those of :func:`rmsexp.system.process.stopping_signals`. ``joint``: whether this is one of the
    processes of a run on several. ``received``: the number of the signal that the process has got, or None.
    """

    def __init__(self, joint: bool = False) -> None:
        self._deferred = 0
        self.received: int | None = None
        self._since_signal = Stopwatch()
        # A worker gets a signal from its terminal and again from the sweep's process, which acts on second signals. A
        # process that torchrun started gets a signal again from torchrun.
        self._once = joint or parent_process() is not None

    @contextmanager
    def install(self) -> Iterator[None]:
        with process.handling(self._handle, process.stopping_signals()):
            yield

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Delay the exception for a signal to the end of the outermost such context.

        A second Ctrl-C, more than ``process.TWICE`` seconds later, raises at once.
        """
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1
        if self.received is not None and not self._deferred:
            raise Interrupted(self.received)

    def _handle(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        again = self.received is not None
        # Only with Ctrl-C does someone ask for an end at once. Others often come twice: SIGHUP from the shell and from
        # the kernel when a terminal is closed, those of timeout(1) and of SLURM to a process and to its group.
        if again and (self._once or signum != signal.SIGINT or self._since_signal.seconds < process.TWICE):
            return
        self.received, self._since_signal = signum, Stopwatch()
        if again or not self._deferred:
            raise Interrupted(signum, torn=again)
