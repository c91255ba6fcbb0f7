"""How many threads a process uses: the least of its affinity, of its control groups' quotas, and of its launcher."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmsexp import cores, mounts
from rmsexp.data import parts


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for files of the kernel, of a machine of 16 cores without quotas and launchers."""
    for name in cores.LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(cores, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(mounts, "MOUNTINFO", tmp_path / "mountinfo")
    return tmp_path


def groups(machine: Path, membership: str, mounted: str, files: dict[str, str]) -> None:
    """Write what the kernel says about control groups. ``mounted``: a line of mountinfo, with {} for the mount."""
    point = machine / "control groups"  # the kernel writes the blank in octal digits
    (machine / "cgroup").write_text(membership)
    escaped = str(point).replace(" ", r"\040")
    (machine / "mountinfo").write_text("21 1 8:1 / / rw - ext4 /dev/vda rw\n" + mounted.format(escaped) + "\n")
    for name, text in files.items():
        (point / name).parent.mkdir(parents=True, exist_ok=True)
        (point / name).write_text(text)


V2 = "30 21 0:26 / {} rw,nosuid - cgroup2 cgroup2 rw"
V1 = "30 21 0:26 / {} rw - cgroup cgroup rw,cpu,cpuacct"


def test_without_limits_all_cores_of_the_affinity_are_used(machine: Path) -> None:
    assert cores.threads() == 16
    assert cores.threads(3) == 5
    assert cores.threads(100) == 1
    (machine / "cgroup").write_text("not a line of the kernel")
    assert cores.threads() == 16


@pytest.mark.parametrize(("quota", "threads"), [("50000", 1), ("250000", 2), ("400000", 4), ("9900000", 16)])
def test_quotas_of_both_versions(quota: str, threads: int, machine: Path) -> None:
    groups(machine, "0::/job/step\n", V2, {"job/step/cpu.max": f"{quota} 100000\n"})
    assert cores.threads() == threads
    files = {"job/step/cpu.cfs_quota_us": f"{quota}\n", "job/step/cpu.cfs_period_us": "100000\n"}
    groups(machine, "9:memory:/else\n5:cpu,cpuacct:/job/step\n0::/\n", V1, files)
    (machine / "control groups/job/step/cpu.max").unlink()
    assert cores.threads() == threads


def test_no_quota(machine: Path) -> None:
    groups(machine, "0::/job\n", V2, {"job/cpu.max": "max 100000\n"})
    assert cores.threads() == 16
    groups(machine, "5:cpu:/job\n", V1, {"job/cpu.cfs_quota_us": "-1\n", "job/cpu.cfs_period_us": "100000\n"})
    (machine / "control groups/job/cpu.max").unlink()
    assert cores.threads() == 16


def test_the_least_quota_of_a_group_and_those_above_it_counts(machine: Path) -> None:
    files = {"a/b/c/cpu.max": "max 100000", "a/b/cpu.max": "300000 100000", "a/cpu.max": "600000 100000"}
    groups(machine, "0::/a/b/c\n", V2, files)
    assert cores.threads() == 3


@pytest.mark.parametrize("membership", ["0::/docker/1234\n", "0::/docker/1234/inner\n", "0::/../../elsewhere\n"])
def test_in_a_container_the_mount_may_begin_at_its_group(membership: str, machine: Path) -> None:
    line = V2.replace(" / {}", " /docker/1234 {}")
    groups(machine, membership, line, {"cpu.max": "200000 100000", "inner/cpu.max": "max 100000"})
    assert cores.threads() == 2


@pytest.mark.parametrize(
    ("name", "value", "threads"),
    [
        ("OMP_NUM_THREADS", "3", 3),
        ("OMP_NUM_THREADS", "2,4", 2),
        ("OMP_NUM_THREADS", "64", 16),
        ("OMP_NUM_THREADS", "many", 16),
        ("OMP_NUM_THREADS", "0", 16),
        ("SLURM_CPUS_PER_TASK", "4", 4),
    ],
)
@pytest.mark.usefixtures("machine")
def test_launchers(name: str, value: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs at the same time divide what they share. A launcher's number is that of one of them."""
    monkeypatch.setenv(name, value)
    assert cores.threads() == threads
    assert cores.threads(2) == min(8, threads)


def test_the_least_of_all_limits_counts(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups(machine, "0::/job\n", V2, {"job/cpu.max": "600000 100000"})
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    assert cores.threads() == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert cores.threads() == 2


def test_a_group_of_half_a_core() -> None:
    """A real one, where this process may make it: version 1 of control groups, as root."""
    folder = Path("/sys/fs/cgroup/cpu", f"rmsexp-test-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / "cpu.cfs_quota_us").write_text("50000")
    except OSError:
        pytest.skip("no control group can be made here; the tests above simulate them")
    child = os.fork()
    if not child:
        (folder / "cgroup.procs").write_text(str(os.getpid()))
        os._exit(cores.threads())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    folder.rmdir()


@pytest.mark.parametrize(("size", "given", "threads"), [(None, None, 16), (4, 1, 4), (4, 3, 12), (8, 4, 16), (1, 2, 2)])
def test_a_process_has_the_threads_of_those_that_wait(
    size: int | None, given: int | None, threads: int, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun gives each process one thread, unless the user has set a number."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for name, value in {"LOCAL_WORLD_SIZE": size, "OMP_NUM_THREADS": given}.items():
        if value is not None:
            monkeypatch.setenv(name, str(value))
    assert cores.threads_while_others_wait() == threads
    assert parts.processes(100) == min(threads, parts.MOST)
    groups(machine, "0::/job\n", V2, {"job/cpu.max": "200000 100000\n"})
    assert cores.threads_while_others_wait() == 2
