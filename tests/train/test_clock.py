"""The clock, and the detection of other processes that slow a run down."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rmsexp import record
from rmsexp.train import clock, contention
from rmsexp.train.clock import Clock
from rmsexp.train.contention import Contention

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list from which the clock takes its readings, the first entry first."""
    readings: list[float] = []
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: readings.pop(0)))
    return readings


def test_buckets_add_up(ticking: list[float]) -> None:
    watch = Clock()
    assert watch.seconds == dict.fromkeys(record.BUCKETS, 0.0)
    lengths = {"warmup": 64, "data": 1, "train": 2, "eval": 4, "checkpoint": 8, "log": 16}
    for repeat in (1, 2):
        for name, length in lengths.items():
            ticking += [100.0, 100.0 + length]
            with watch.bucket(name):
                pass
        assert watch.seconds == {name: repeat * length for name, length in lengths.items()}
        assert watch.time == repeat * 3  # data and train


def test_a_bucket_includes_time_that_an_exception_ends(ticking: list[float]) -> None:
    watch = Clock()
    ticking += [1.0, 1.5]
    with pytest.raises(KeyboardInterrupt), watch.bucket("train"):
        raise KeyboardInterrupt
    assert watch.seconds["train"] == 0.5


def test_an_outer_bucket_includes_the_time_of_an_inner_one(ticking: list[float]) -> None:
    watch = Clock()
    ticking += [0.0, 1.0, 3.0, 7.0]
    with watch.bucket("eval"), watch.bucket("checkpoint"):
        pass
    assert (watch.seconds["checkpoint"], watch.seconds["eval"]) == (2.0, 7.0)


def test_a_clock_continues_from_saved_seconds(ticking: list[float]) -> None:
    before = Clock()
    ticking += [10.0, 13.0, 5.0, 6.0]  # in the second process the readings start elsewhere
    with before.bucket("train"):
        pass
    saved = json.loads(json.dumps(before.seconds))
    after = Clock(saved)
    with after.bucket("train"):
        pass
    assert after.time == 4.0
    assert before.time == 3.0


def test_a_bucket_has_positive_time_on_the_real_clock() -> None:
    watch = Clock()
    with watch.bucket("data"):
        sum(range(1000))
    assert watch.time == watch.seconds["data"] > 0


def test_now_is_utc_to_the_second() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", clock.now())


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


@pytest.mark.alone
@readable
def test_another_process_on_the_same_core_is_detected() -> None:
    done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["state"] == "contended"
    assert report["waited"] > contention.WAITED_LIMIT


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
    ("waited", "stolen", "state"),
    [(0, 0, "clear"), (50, 0, "clear"), (51, 0, "contended"), (0, 20, "clear"), (0, 21, "contended")],
)
def test_limits_are_5_percent_waiting_and_2_percent_stolen(proc: Path, waited: int, stolen: int, state: str) -> None:
    watch = Contention(CPU)
    write_proc(proc, {"1": (400, 9000)}, stolen=500, ticks=7000)
    with watch.watch():
        write_proc(proc, {"1": (1400, 9000 + waited)}, stolen=500 + stolen, ticks=8000)
    assert watch.report() == {"state": state, "waited": waited / 1000, "steal": stolen / 1000}


@pytest.mark.parametrize(("shared", "state"), [(True, "contended"), (False, "clear")])
def test_runs_that_a_launcher_does_in_parallel_are_contended(proc: Path, shared: bool, state: str) -> None:
    watch = Contention(CPU, shared)
    write_proc(proc, {"1": (0, 0)})
    with watch.watch():
        write_proc(proc, {"1": (1000, 0)})
    assert watch.report() == {"state": state, "waited": 0.0, "steal": 0.0}


def test_only_watched_times_are_added_up(proc: Path) -> None:
    watch = Contention(CPU)
    for start in (0, 10_000):
        write_proc(proc, {"1": (start, start)})  # changes outside of the context are ignored
        with watch.watch():
            write_proc(proc, {"1": (start + 1000, start + 30)})
    assert watch.report() == {"state": "clear", "waited": 0.03, "steal": 0.0}


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
    assert watch.report() == {"state": "unknown", "waited": None, "steal": None}


def test_contention_is_unknown_before_anything_was_watched() -> None:
    assert Contention(CPU).report()["state"] == "unknown"


@pytest.mark.parametrize("files_exist", [True, False])
def test_an_exception_inside_the_context_is_raised(proc: Path, files_exist: bool) -> None:
    if files_exist:
        write_proc(proc, {"1": (100, 100)})
    with pytest.raises(ZeroDivisionError), Contention(CPU).watch():
        raise ZeroDivisionError


@readable
def test_the_files_of_this_machine_can_be_read() -> None:
    watch = Contention(CPU)
    with watch.watch():
        end = time.process_time() + 0.1  # the kernel updates a thread's times only at its ticks
        while time.process_time() < end:
            torch.ones(300, 300) @ torch.ones(300, 300)
    report = watch.report()
    assert report["state"] in ("clear", "contended")
    assert report["waited"] >= 0
    assert 0 <= report["steal"] <= 1
    assert str(os.getpid()) in contention._schedstat()


@pytest.mark.parametrize(
    ("listed", "shared"),
    [
        ("{pid}", False),
        ("{pid}\n{pid}", False),  # on two GPUs
        ("{pid}\n1", True),
        ("1\n2\n{pid}", True),
        ("", None),
        ("1", None),  # ids of another namespace, which lack the id of this process
        ("[N/A]", None),
        ("No running processes found", None),
    ],
)
def test_a_gpu_is_shared_if_nvidia_smi_lists_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, shared: bool | None
) -> None:
    fake_nvidia_smi(tmp_path, f"cat <<'END'\n{listed.format(pid=os.getpid())}\nEND")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
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
        ([False, False], "clear"),
        ([True, False], "contended"),
        ([False, True], "contended"),
        ([True, None], "contended"),
        ([None, False], "clear"),
        ([False, None], "unknown"),
        ([None, None], "unknown"),
    ],
)
def test_a_run_is_contended_if_the_gpu_was_shared_at_any_report(
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


def test_nvidia_smi_is_not_called_for_a_run_on_a_cpu(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "_gpu_shared", lambda: 1 / 0)
    watch = Contention(CPU)
    write_proc(proc, {"1": (0, 0)})
    with watch.watch():
        write_proc(proc, {"1": (1000, 1)})
    assert watch.report()["state"] == "clear"
