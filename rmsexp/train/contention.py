"""Whether something else took the machine from a run while its clock ran."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

WAITED_LIMIT = 0.05  # of the CPU time of the run's threads; 0.005 alone, 0.64 beside one busy process
STEAL_LIMIT = 0.02  # of the machine's time, taken by its host


def _schedstat() -> dict[str, tuple[int, int]]:
    """Nanoseconds (on a processor, waiting for one) of each of this process's threads."""
    times = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            ran, waited, _ = path.read_text().split()
        except (OSError, ValueError):  # the thread ended meanwhile
            continue
        times[path.parent.name] = (int(ran), int(waited))
    return times


def _machine() -> tuple[int, int]:
    """Ticks of all processors since boot: (stolen, all)."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[7], sum(ticks)


def _gpu_shared() -> bool | None:
    """Whether another process computes on the GPU; None where that cannot be read.

    Inside a container the list is empty or has other ids: then this process, which does compute there, is not on it.
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
    """Adds up, over the stretches that are timed, what the threads waited and what the host stole.

    ``shared``: a launcher runs others beside this one. With a core each they need not wait, but share the memory.
    """

    def __init__(self, device: torch.device) -> None:
        self.shared = False
        self._on_gpu = device.type == "cuda"
        self._gpu_shared: bool | None = False
        self._ran = self._waited = self._stolen = self._ticks = 0
        self._readable = True

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Around a stretch of timed work."""
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
        """``state`` (clear, contended or unknown) and the two shares, for the record."""
        if self._on_gpu and not self._gpu_shared:  # once shared, it stays so
            self._gpu_shared = _gpu_shared()
        if not self._readable or not self._ran or self._gpu_shared is None:
            return {"state": "unknown", "waited": None, "steal": None}
        waited = self._waited / self._ran
        steal = self._stolen / self._ticks if self._ticks else 0.0
        contended = self.shared or waited > WAITED_LIMIT or steal > STEAL_LIMIT or self._gpu_shared
        return {"state": "contended" if contended else "clear", "waited": round(waited, 4), "steal": round(steal, 4)}
