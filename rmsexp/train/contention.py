"""Whether other processes, or the host of a virtual machine, slowed a run down while its clock ran."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

WAITED_LIMIT = 0.05  # of the threads' CPU time; measured: 0.005 alone, 0.64 beside one busy process
STEAL_LIMIT = 0.02  # of the machine's time, taken by the host


def _schedstat() -> dict[str, tuple[int, int]]:
    """Return the nanoseconds (on a core, waiting for a core) of each thread of this process."""
    times = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            ran, waited, _ = path.read_text().split()
        except (OSError, ValueError):  # the thread has ended
            continue
        times[path.parent.name] = (int(ran), int(waited))
    return times


def _machine() -> tuple[int, int]:
    """Return the ticks of all cores since boot: (stolen, all)."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[7], sum(ticks)


def _gpu_shared() -> bool | None:
    """Return whether another process computes on the GPU; None if that cannot be read.

    This process computes there too. If nvidia-smi does not list it, as in a container, the list is useless.
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
    """Adds up how long the threads waited and how much time the host stole, while :meth:`watch` is entered.

    ``shared``: a launcher runs other processes at the same time. Such a run counts as contended even if its threads
    never wait for a core, because the processes share the memory's bandwidth.
    """

    def __init__(self, device: torch.device, shared: bool = False) -> None:
        self._shared = shared
        self._on_gpu = device.type == "cuda"
        self._gpu_shared: bool | None = False
        self._ran = self._waited = self._stolen = self._ticks = 0
        self._readable = True

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch the work inside, which is also timed by the clock."""
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
        """Return ``state`` (clear, contended or unknown) and the shares of time waited and stolen, for the record."""
        if self._on_gpu and not self._gpu_shared:  # shared at one time is enough
            self._gpu_shared = _gpu_shared()
        if not self._readable or not self._ran or self._gpu_shared is None:
            return {"state": "unknown", "waited": None, "steal": None}
        waited = self._waited / self._ran
        steal = self._stolen / self._ticks if self._ticks else 0.0
        contended = self._shared or waited > WAITED_LIMIT or steal > STEAL_LIMIT or self._gpu_shared
        return {"state": "contended" if contended else "clear", "waited": round(waited, 4), "steal": round(steal, 4)}
