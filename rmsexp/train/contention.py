"""Measure whether other processes, or the host of a virtual machine, slowed a run down while its steps were timed.

The evidence is that the threads of the run wait for a core, that the host takes away time of the cores, that another
process uses the run's GPU, that a launcher does other runs at the same time, and that the process was suspended, as by
Ctrl-Z. Commands that time steps measure probes as well (:mod:`rmsexp.measure.probes`).
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rmsexp.records.record import STEAL_LIMIT, WAITED_LIMIT
from rmsexp.system import process
from rmsexp.system.clock import Stopwatch


def _schedstat() -> dict[str, tuple[int, int]]:
    """Return by thread id the nanoseconds (on a core, waiting for a core) of each thread of this process."""
    times = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            ran, waited, _ = path.read_text().split()
        except (OSError, ValueError):  # the thread has ended
            continue
        times[path.parent.name] = (int(ran), int(waited))
    return times


def _machine() -> tuple[int, int]:
    """Return the clock ticks of all cores since boot: (ticks that the host took away, all ticks)."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[7], sum(ticks)


def _gpu_shared() -> bool | None:
    """Return whether another process computes on the GPU of this process; None if that is unknown.

    If nvidia-smi does not list this process, as in a container, the answer is None.
    """
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.partition(", ")[::2] for line in answer.splitlines()]
    gpus = [gpu for pid, gpu in rows if pid == str(os.getpid())]
    return sum(gpu in gpus for _, gpu in rows) > len(gpus) if gpus else None


class Contention:
    """Decides whether a run was disturbed, from the times inside :meth:`watch`.

    ``shared``: whether a launcher does other runs at the same time. The run is then disturbed even if its threads never
    wait for a core, because the processes share the memory's bandwidth.
    """

    def __init__(self, device: torch.device, shared: bool = False) -> None:
        self._shared = shared
        self.on_gpu = device.type == "cuda"
        self._gpu_shared: bool | None = False
        self._ran = self._waited = self._stolen = self._ticks = 0
        self._readable, self._suspended = True, False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Add up the times inside the context. If the files in /proc cannot be read, the state becomes unknown.

        A suspension of the process inside, during which the clock runs on, is noticed by the SIGCONT that ends it. One
        just before an exception ends the context does not count: SLURM sends it with the SIGTERM that ends a job.
        A container that is frozen and thawed gets no signal.
        """
        try:
            threads, machine = _schedstat(), _machine()
        except (OSError, ValueError, IndexError):
            self._readable = False
            yield
            return
        # of a signal with a handler that Python did not install, which it cannot restore, there is no notice
        numbers = [signal.SIGCONT] if signal.getsignal(signal.SIGCONT) is not None else []
        continued, least = list[Stopwatch](), 5.0
        try:
            with process.handling(lambda *_: continued.append(Stopwatch()), numbers):
                yield
            least = 0.0
        finally:  # the run may be interrupted inside
            self._suspended |= any(watch.seconds >= least for watch in continued)
            for thread, (ran, waited) in _schedstat().items():
                before = threads.get(thread, (0, 0))
                self._ran += ran - before[0]
                self._waited += waited - before[1]
            stolen, ticks = _machine()
            self._stolen += stolen - machine[0]
            self._ticks += ticks - machine[1]

    def report(self) -> dict[str, Any]:
        """Return ``state`` (undisturbed, disturbed or unknown), ``waited``, ``steal``, ``shared`` and ``based_on``.

        ``waited``: the threads' time of waiting for a core, divided by their CPU time. ``steal``: the share of all
        cores' time that the host took away. Both are None if the state is unknown, as the evidence cannot be read or
        nothing was watched. ``shared``: whether other runs were done at the same time, or another process used the GPU.
        ``based_on``: which evidence there was, such as "waiting". This asks nvidia-smi who uses the run's GPU now.
        """
        if self.on_gpu and not self._gpu_shared:  # a run whose GPU was shared once stays disturbed
            self._gpu_shared = _gpu_shared()
        if not self._readable or not self._ran or self._gpu_shared is None:
            return {"state": "unknown", "waited": None, "steal": None, "shared": self._shared, "based_on": []}
        # rounded before they are compared with the limits, so that reports, which read them, decide the same
        waited = round(self._waited / self._ran, 4)
        steal = round(self._stolen / self._ticks, 4) if self._ticks else 0.0
        shared = self._shared or self._gpu_shared
        disturbed = shared or self._suspended or waited > WAITED_LIMIT or steal > STEAL_LIMIT
        evidence = {"waiting": True, "steal": True, "gpu": self.on_gpu, "suspension": self._suspended}
        return {
            "state": "disturbed" if disturbed else "undisturbed",
            "waited": waited,
            "steal": steal,
            "shared": shared,
            "based_on": [name for name, exists in evidence.items() if exists],
        }
