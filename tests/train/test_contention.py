"""The detection of other processes, and of a busy host, that slow a run down."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from rmsexp.records import record
from rmsexp.system import clock
from rmsexp.train import contention
from rmsexp.train.contention import Contention

CPU, CUDA = torch.device("cpu"), torch.device("cuda")

readable = pytest.mark.skipif(not contention._schedstat(), reason="this kernel does not report how long threads waited")

BUSY = """
import json, os, subprocess, sys, time
import numpy, torch
from rmsexp.train.contention import Contention
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
torch.set_num_threads(1)
rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
try:
    contention = Contention(torch.device("cpu"))
    end = time.monotonic() + 1
    with contention.watch():
        x = numpy.ones((100, 100))
        while time.monotonic() < end:
            x = x @ x / 100
    print(json.dumps(contention.report()))
finally:
    rival.kill()
"""


@pytest.mark.slow
@readable
def test_another_process_on_the_same_core_is_detected() -> None:
    done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["state"] == "disturbed"
    assert report["waited"] > record.WAITED_LIMIT


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that replaces ``/proc``; :func:`write_proc` writes its files."""
    monkeypatch.setattr(contention, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    return tmp_path / "proc"


def write_proc(proc: Path, threads: dict[str, tuple[int, int]], stolen: int = 0, ticks: int = 0) -> None:
    """Write the files of /proc: by thread id, the nanoseconds (on a core, waiting for a core), and the machine's ticks.

    ``/proc/stat`` has guests' ticks twice. They are written as ``ticks`` in the second place, which must be ignored.
    """
    for thread, (ran, waited) in threads.items():
        (proc / "self/task" / thread).mkdir(parents=True, exist_ok=True)
        (proc / "self/task" / thread / "schedstat").write_text(f"{ran} {waited} 17\n")
    idle = ticks - stolen
    (proc / "stat").write_text(f"cpu  0 0 0 {idle} 0 0 0 {stolen} {ticks} 0\ncpu0 7 7 7 7 7 7 7 7 7 7\nintr 1\n")


@pytest.mark.parametrize(
    ("waited", "stolen", "shared", "state"),
    [  # shared: a launcher does runs in parallel
        *((0, 0, False, "undisturbed"), (15, 0, False, "undisturbed"), (16, 0, False, "disturbed")),
        *((0, 20, False, "undisturbed"), (0, 21, False, "disturbed"), (0, 0, True, "disturbed")),
    ],
)
def test_limits_are_1_5_percent_waiting_and_2_percent_stolen(
    proc: Path, waited: int, stolen: int, shared: bool, state: str
) -> None:
    watch = Contention(CPU, shared)
    write_proc(proc, {"1": (400, 9000)}, stolen=500, ticks=7000)
    with watch.watch():
        write_proc(proc, {"1": (1400, 9000 + waited)}, stolen=500 + stolen, ticks=8000)
    report = watch.report()
    assert (report["state"], report["waited"], report["steal"]) == (state, waited / 1000, stolen / 1000)
    assert report["based_on"] == ["waiting", "steal"]


def test_only_watched_times_are_added_up(proc: Path) -> None:
    watch = Contention(CPU)
    for start in (0, 10_000):
        write_proc(proc, {"1": (start, start)})  # changes outside of the context are ignored
        with watch.watch():
            write_proc(proc, {"1": (start + 1000, start + 30)})
    assert watch.report()["waited"] == 0.03


def test_threads_that_end_or_begin_inside_the_context_are_handled(proc: Path) -> None:
    watch = Contention(CPU)
    write_proc(proc, {"1": (100, 100), "2": (5000, 5000)})
    with watch.watch():
        (proc / "self/task/2/schedstat").unlink()
        write_proc(proc, {"1": (600, 110), "3": (500, 30)})
    assert watch.report()["waited"] == 0.04


@pytest.mark.parametrize("missing", ["stat", "schedstat", "all", "damaged", "disabled"])
def test_contention_is_unknown_without_readable_files(proc: Path, missing: str) -> None:
    write_proc(proc, {"1": (100, 100)})
    if missing in ("stat", "all"):
        (proc / "stat").unlink()
    if missing in ("schedstat", "all"):
        (proc / "self/task/1/schedstat").unlink()
    if missing == "damaged":
        (proc / "stat").write_text("nothing\n")
    watch, entered = Contention(CPU), False
    with watch.watch():
        entered = True
    assert entered
    report = watch.report()
    assert (report["state"], report["waited"], report["steal"], report["based_on"]) == ("unknown", None, None, [])


def test_times_until_an_interruption_count(proc: Path) -> None:
    write_proc(proc, {"1": (100, 100)})
    watch = Contention(CPU)

    def interrupted() -> None:
        write_proc(proc, {"1": (1100, 110)})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), watch.watch():
        interrupted()
    assert watch.report()["waited"] == 0.01


def test_a_process_that_was_suspended_in_the_context_is_disturbed(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGCONT ends every suspension. Outside of the context, and if SLURM sends it with SIGTERM, it does not count."""

    now = [0.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])

    def report(in_context: bool, error: type[BaseException] | None = None, later: float = 0.0) -> dict[str, Any]:
        watch = Contention(CPU)
        write_proc(proc, {"1": (0, 0)})
        with suppress(KeyboardInterrupt), watch.watch():
            write_proc(proc, {"1": (1000, 0)})
            if in_context:
                signal.raise_signal(signal.SIGCONT)
            now[0] += later
            if error is not None:
                raise error
        signal.raise_signal(signal.SIGCONT)
        return watch.report()

    before = signal.getsignal(signal.SIGCONT)
    assert (report(True)["state"], report(True)["based_on"]) == ("disturbed", ["waiting", "steal", "suspension"])
    assert (report(False)["state"], report(False)["based_on"]) == ("undisturbed", ["waiting", "steal"])
    assert report(True, KeyboardInterrupt)["state"] == "undisturbed"
    assert report(True, KeyboardInterrupt, later=60)["state"] == "disturbed"
    assert signal.getsignal(signal.SIGCONT) == before


@pytest.mark.parametrize(
    ("listed", "shared"),
    [
        ("7, GPU-a\n7, GPU-b", False),
        ("7, GPU-a\n8, GPU-b\n9, GPU-b", False),
        ("1, GPU-a\n2, GPU-a\n7, GPU-a", True),
        ("1, GPU-a", None),  # ids of another namespace, which lack the id of this process
        ("[N/A], GPU-a", None),
        ("No running processes found", None),
    ],
)
def test_a_gpu_is_shared_if_nvidia_smi_lists_another_process_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, shared: bool | None
) -> None:
    asked = '[ "$1" = --query-compute-apps=pid,gpu_uuid ] || exit 1'
    fake_nvidia_smi(tmp_path, f"{asked}\ncat <<'END'\n{listed}\nEND")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(contention.os, "getpid", lambda: 7)
    assert contention._gpu_shared() is shared


@pytest.mark.parametrize("script", ["exit 9", "echo $$; exit 1", None])
def test_it_is_unknown_whether_a_gpu_is_shared_if_nvidia_smi_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    if script is not None:
        fake_nvidia_smi(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert contention._gpu_shared() is None


def fake_nvidia_smi(folder: Path, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        ([False, False], "undisturbed"),
        ([True, False], "disturbed"),
        ([False, True], "disturbed"),
        ([True, None], "disturbed"),
        ([None, False], "undisturbed"),
        ([False, None], "unknown"),
        ([None, None], "unknown"),
    ],
)
def test_a_run_is_disturbed_if_the_gpu_was_shared_at_any_report(
    proc: Path, monkeypatch: pytest.MonkeyPatch, answers: list[bool | None], state: str
) -> None:
    remaining = iter(answers)
    monkeypatch.setattr(contention, "_gpu_shared", lambda: next(remaining))
    watch = Contention(CUDA)
    write_proc(proc, {"1": (0, 0)})
    with watch.watch():
        write_proc(proc, {"1": (1000, 1)})
    watch.report()
    assert watch.report()["state"] == state
