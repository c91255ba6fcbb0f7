"""How many threads a process shall use on this machine. This module imports joblib, when it is asked.

What limits them: the cores that the process may run on (its affinity), the processor time that a container has (as one
of half a core), and what a launcher gave it. joblib knows the first two. It rounds the processor time up, and reads
that of the control group at ``/sys/fs/cgroup``, which in a container is its own; it knows nothing of the groups below.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

# What launchers set: torchrun and Ray the first one, SLURM the second one. Nested parallelism is written as "4,2".
LAUNCHERS = ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK")


def threads(processes: int = 1) -> int:
    """Return the number of threads of each of several processes that share what this process has; at least 1.

    ``min(available cores / processes, launcher)``, rounded down. A launcher gives each process its own threads.
    """
    return max(1, int(min(_available() / processes, min(_given(), default=math.inf))))


def threads_while_others_wait() -> int:
    """Return the number of threads while the other processes wait that torchrun started on this machine; at least 1.

    ``min(available cores, launcher * their number)``.
    """
    number = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, int(min(_available(), number * min(_given(), default=math.inf))))


def _available() -> int:
    from joblib import cpu_count

    return cpu_count()


def _given() -> Iterator[int]:
    """Yield the number of threads in each variable of a launcher. Values that are no such number are left out."""
    for name in LAUNCHERS:
        first = os.environ.get(name, "").split(",")[0].strip()
        if first.isdecimal() and int(first) > 0:
            yield int(first)
