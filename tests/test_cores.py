"""How many threads a process uses: the least of its affinity, of its control groups' quotas, and of its launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.campaign_runs import write_file

from rmsexp.data import parts
from rmsexp.records import record
from rmsexp.system import cores, mounts


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


HALF = {"cgroup2": ("cpu.max", "50000 100000"), "cgroup": ("cpu.cfs_quota_us", "50000")}  # kind of mount -> a limit


def make_half_a_core(mount: mounts.Mount) -> Path | None:
    """Make a control group of half a core, and return its folder; None where this process may not, or there is none."""
    if mount.kind not in HALF:
        return None
    folder = mount.point / f"rmsexp-test-{os.getpid()}"
    file, limit = HALF[mount.kind]
    try:
        folder.mkdir()
    except OSError:
        return None
    try:
        (folder / file).write_text(limit)
    except OSError:  # the group has no controller of processor time
        folder.rmdir()
        return None
    return folder


@pytest.fixture
def half_a_core() -> Iterator[Path]:
    """Yield the folder of a real control group, of either version, where this process may make one, as root."""
    folder = next(filter(None, map(make_half_a_core, mounts.mounts())), None)
    if folder is None:
        pytest.skip("no control group can be made here; the tests above simulate them")
    yield folder
    folder.rmdir()


def join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


def test_a_group_of_half_a_core(half_a_core: Path) -> None:
    child = os.fork()
    if not child:
        join(half_a_core)
        os._exit(cores.threads())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.mark.minutes
def test_a_worker_in_a_group_of_half_a_core_uses_one_thread(half_a_core: Path, tmp_path: Path) -> None:
    """Without threads=null, workers have one thread everywhere."""
    folder = write_file(tmp_path / "configs", final={"seeds": {"look": 2, "most": 2}})
    results = tmp_path / "results"
    environment = {key: value for key, value in os.environ.items() if key not in cores.LAUNCHERS}
    done = subprocess.run(
        [sys.executable, "-m", "rmsexp.campaign", "tiny", "--config-dir", folder, f"results={results}", "threads=null"],
        env=environment | {"TMPDIR": str(tmp_path)},
        preexec_fn=lambda: join(half_a_core),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": RMSNorm equals LayerNorm: " in done.stdout  # the verdict, which needs all runs
    runs = [record.RunFolder(path).read_run() for path in record.find_runs(results)]
    assert {session["threads"] for run in runs for session in run["sessions"]} == {1}


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
