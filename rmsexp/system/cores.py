"""How many threads a process shall use on this machine. This module imports only the standard library, and ``mounts``.

What limits them: the cores that the process may run on (its affinity), the processor time that control groups leave it
(as for a container of half a core), and what a launcher gave it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rmsexp.system.mounts import mounts

CGROUP = Path("/proc/self/cgroup")
# What launchers set: torchrun and Ray the first one, SLURM the second one. Nested parallelism is written as "4,2".
LAUNCHERS = ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK")


def threads(processes: int = 1) -> int:
    """Return the number of threads of each of several processes that share what this process has; at least 1.

    ``min(min(affinity, quota) / processes, launcher)``, rounded down. A launcher gives each process its own threads.
    """
    return max(1, int(min(_available() / processes, min(_given(), default=math.inf))))


def threads_while_others_wait() -> int:
    """Return the number of threads while the other processes wait that torchrun started on this machine; at least 1.

    ``min(affinity, quota, launcher * their number)``, rounded down.
    """
    number = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, int(min(_available(), number * min(_given(), default=math.inf))))


def _available() -> float:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not on macOS
    return min(cores, min(_quotas(), default=math.inf))


def _given() -> Iterator[int]:
    """Yield the number of threads in each variable of a launcher. Values that are no such number are left out."""
    for name in LAUNCHERS:
        first = os.environ.get(name, "").split(",")[0].strip()
        if first.isdecimal() and int(first) > 0:
            yield int(first)


def _quotas() -> Iterator[float]:
    """Yield the processor time of each control group above this process that has a limit, in cores."""
    with suppress(OSError, ValueError):  # without control groups, or with files of another form: no limit is known
        for line in CGROUP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for folder in _folders(controllers.split(","), Path(path)):
                with suppress(OSError, ValueError, ZeroDivisionError):
                    yield _quota(folder)


def _folders(controllers: list[str], path: Path) -> Iterator[Path]:
    """Yield the folders of a control group and of those above it, as far as they are mounted.

    ``controllers``: [""] for version 2 of control groups. ``path``: the group's path. In a container its beginning, or
    all of it, may not be mounted; then the top of the mount stands for the container's group.
    """
    for mount in mounts():
        second = mount.kind == "cgroup2" and controllers == [""]
        first = mount.kind == "cgroup" and "cpu" in mount.options and "cpu" in controllers
        if first or second:
            below = path.relative_to(mount.root) if path.is_relative_to(mount.root) else Path()
            folder = mount.point / below
            yield folder
            yield from (parent for parent in folder.parents if parent.is_relative_to(mount.point))


def _quota(folder: Path) -> float:
    """Return the limit of a control group, version 2 or 1, in cores. Raises: ValueError or OSError if it has none."""
    second = folder / "cpu.max"  # "QUOTA PERIOD", or "max PERIOD" without a limit
    files = (folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
    quota, period = second.read_text().split() if second.exists() else (file.read_text() for file in files)
    if int(quota) < 0:
        raise ValueError(f"{folder} has no limit")
    return int(quota) / int(period)
