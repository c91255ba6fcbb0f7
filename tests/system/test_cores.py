"""How many threads a process uses: the least of its affinity, of its container's quota, and of its launcher."""

import os

import pytest
from joblib.externals.loky.backend import context

from rmsexp.system import cores


@pytest.mark.parametrize(
    ("launchers", "threads"),
    [
        ("", 16),
        ("OMP_NUM_THREADS=3", 3),
        ("OMP_NUM_THREADS=2,4", 2),
        ("OMP_NUM_THREADS=64", 16),
        ("OMP_NUM_THREADS=many", 16),
        ("OMP_NUM_THREADS=0", 16),
        ("SLURM_CPUS_PER_TASK=4", 4),
        ("OMP_NUM_THREADS=5 SLURM_CPUS_PER_TASK=4", 4),
    ],
)
def test_the_least_of_all_limits_counts(launchers: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs at the same time divide what they share. A launcher's number is that of one of them."""
    for name in cores.LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(context, "_cpu_count_cgroup", lambda count: count)
    for word in launchers.split():
        monkeypatch.setenv(*word.split("="))
    assert cores.threads() == threads
    assert [cores.threads(processes) for processes in (2, 3, 100)] == [min(8, threads), min(5, threads), 1]
    monkeypatch.setattr(context, "_cpu_count_cgroup", lambda _: 6)
    assert cores.threads() == min(6, threads)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert cores.threads() == 2
