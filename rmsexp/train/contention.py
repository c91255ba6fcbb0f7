"""Measure whether other processes, or the host of a virtual machine, slowed a run down while its steps were timed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

# A run is contended if its threads wait for a core for more than WAITED_LIMIT times their CPU time (measured: 0.005
# without other busy processes, 0.64 beside one), or if the host of a virtual machine takes away more than STEAL_LIMIT
# of the time of all cores.
WAITED_LIMIT = 0.05
STEAL_LIMIT = 0.02


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
    """Return whether another process computes on a GPU of this machine; None if that is unknown.

    This process computes on a GPU, too. If nvidia-smi does not list it, as in a container, the answer is None.
    """
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    pids = {word for word in answer.split() if word.isdigit()}
    return len(pids) > 1 if str(os.getpid()) in pids else None


class Contention:
    """Adds up how long this process's threads waited for a core and how much time the host took, inside :meth:`watch`.

    ``shared``: whether a launcher does other runs at the same time. The run is then contended even if its threads never
    wait for a core, because the processes share the memory's bandwidth.
    """

    def __init__(self, device: torch.device, shared: bool = False) -> None:
        self._shared = shared
        self._on_gpu = device.type == "cuda"
        self._gpu_shared: bool | None = False
        self._ran = self._waited = self._stolen = self._ticks = 0
        self._readable = True

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Add up the times inside the context. If the files in /proc cannot be read, the state becomes unknown."""
        try:
            threads, machine = _schedstat(), _machine()
        except (OSError, ValueError, IndexError):
            self._readable = False
            yield
            return
        yield
        for thread, (ran, waited) in _schedstat().items():
            before = threads.get(thread, (0, 0))
            self._ran += ran - before[0]
            self._waited += waited - before[1]
        stolen, ticks = _machine()
        self._stolen += stolen - machine[0]
        self._ticks += ticks - machine[1]

    def report(self) -> dict[str, Any]:
        """Return ``state`` (clear, contended or unknown), ``waited`` and ``steal``.

        ``WAITED_LIMIT`` and ``STEAL_LIMIT`` apply to ``waited`` and ``steal``; both are None if the state is unknown.
        On a GPU this also asks nvidia-smi whether another process uses a GPU now.
        """
        if self._on_gpu and not self._gpu_shared:  # a run whose GPU was shared once stays contended
            self._gpu_shared = _gpu_shared()
        if not self._readable or not self._ran or self._gpu_shared is None:
            return {"state": "unknown", "waited": None, "steal": None}
        waited = self._waited / self._ran
        steal = self._stolen / self._ticks if self._ticks else 0.0
        contended = self._shared or waited > WAITED_LIMIT or steal > STEAL_LIMIT or self._gpu_shared
        return {"state": "contended" if contended else "clear", "waited": round(waited, 4), "steal": round(steal, 4)}
