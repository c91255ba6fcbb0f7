"""How many threads a process shall use on this machine. The first call imports joblib.

Three things limit them: the CPU affinity of the process, the CPU quota of its container, and what a launcher set.
:func:`joblib.cpu_count` knows the first two. It rounds a quota such as 2.5 cores up, and reads only the quota of the
control group at ``/sys/fs/cgroup``, not those of groups nested in it.
"""

import os

# What launchers set: torchrun and Ray the first one, SLURM the second one. Nested parallelism is written as "4,2".
LAUNCHERS = ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK")


def threads(processes: int = 1) -> int:
    """Return the number of threads of each of several processes that share what this process has; at least 1.

    ``min(available cores / processes, launcher)``, rounded down. A launcher gives each process its own threads; values
    of its variables that are no positive integer are left out.
    """
    from joblib import cpu_count

    first = [os.environ.get(name, "").split(",")[0].strip() for name in LAUNCHERS]
    given = [int(text) for text in first if text.isdecimal() and int(text) > 0]
    return max(1, int(min([cpu_count() / processes, *given])))
