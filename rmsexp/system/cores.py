"""How many threads a process shall use on this machine. The first call imports joblib.

Three things limit them: the CPU affinity of the process, the CPU quota of its container, and what a launcher set.
:func:`joblib.cpu_count` knows the first two. It rounds a quota such as 2.5 cores up, and reads only the quota of the
control group at ``/sys/fs/cgroup``, not those of groups nested in it.
"""

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
