"""The machine's lock: workers pause while one process measures, and a process that dies frees its lock."""

import errno
import fcntl
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from helpers.slopes import SLOPES, slopes_trainer
from torch import nn

from rmsexp.measure import layers
from rmsexp.system import clock, machine_lock
from rmsexp.system.lock import is_locked
from rmsexp.system.machine_lock import NAME, measuring, pause
from rmsexp.system.process import Interrupted
from rmsexp.train.progress import ProgressDisplay

PAUSED = ["paused while another process measures on this machine; goes on when that ends", "going on"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a new folder for the lock, and wait for short times."""
    monkeypatch.setattr(machine_lock, "FOLDER", tmp_path / "locks")
    monkeypatch.setattr(machine_lock, "POLL_SECONDS", 0.002)
    monkeypatch.setattr(machine_lock, "PATIENCE", 0.002)
    return tmp_path / "locks"


class Measurer:
    """A thread that measures until :meth:`end` is called. ``lines``: what it reported."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.started, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()

    def _measure(self) -> None:
        with measuring(self.lines.append):
            self.started.set()
            self._ending.wait(60)

    def end(self) -> None:
        self._ending.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def measurer() -> Iterator[Measurer]:
    started = Measurer()
    assert started.started.wait(60)
    yield started
    started.end()


def test_a_second_measurer_waits_and_says_so(measurer: Measurer, folder: Path) -> None:
    second = Measurer()
    while not second.lines:
        threading.Event().wait(0.001)
    assert not second.started.is_set()
    measurer.end()
    assert second.started.wait(60)
    second.end()
    assert (measurer.lines, second.lines) == ([], ["waiting until another measurement on this machine ends"])
    assert folder.stat().st_mode & 0o777 == 0o700
    pause(pytest.fail)  # nobody measures


MEASURE = """
import sys, time
from pathlib import Path
from rmsexp.system import machine_lock
machine_lock.FOLDER = Path(sys.argv[1])
with machine_lock.measuring(print):
    print("measuring", flush=True)
    time.sleep(600)
"""


def test_a_killed_measurer_frees_the_workers(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", MEASURE, folder], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "measuring\n"
        lines: list[str] = []

        def kill(text: str) -> None:
            lines.append(text)
            process.kill()

        pause(kill)
    assert lines == PAUSED


@pytest.mark.parametrize("reason", ["No locks available", "other users can change", "is not a regular file"])
def test_without_locks_a_line_says_so_and_work_goes_on(
    reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == "No locks available":
        monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, reason)))
    else:
        (folder / NAME).mkdir(parents=True)
        folder.chmod(0o777 if reason == "other users can change" else 0o700)
    lines: list[str] = []
    with measuring(lines.append):
        pause(pytest.fail)
    (line,) = lines
    assert line.startswith("warning: campaign workers on this machine do not pause for this measurement (")
    assert reason in line


def test_benchmarks_take_the_lock(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The generator measures at each of its items, and between them the lock is held, too."""
    case = SimpleNamespace(passes="", layers={})
    monkeypatch.setattr(layers, "CASES", {"norms": lambda *_: [case, case]})
    monkeypatch.setattr(layers, "_measure_case", lambda *_: {})
    cases = layers.measure("norms", ["2x8"], torch.float32, 0.001, torch.device("cpu"), lambda _: None)
    next(cases)
    assert is_locked(folder / NAME)
    cases.close()
    assert not is_locked(folder / NAME)


def test_a_run_pauses_and_its_clock_excludes_the_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measurer: Measurer
) -> None:
    reading = [0.0]
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: reading[0]))
    lines: list[str] = []

    def report(text: str) -> None:
        """End the measuring, an hour later, when the run has paused."""
        lines.append(text)
        reading[0] += 3600
        measurer.end()

    display = Mock(spec=ProgressDisplay, report=report)
    trainer, files = slopes_trainer(SLOPES, tmp_path / "run", nn.Linear(3, 1), display=display, pauses=True)
    trainer.run()
    assert lines == PAUSED
    assert trainer.clock.seconds == dict.fromkeys(clock.BUCKETS, 0.0)
    rows, damage = files.read_metrics()
    assert ([row["step"] for row in rows if row["split"] == "train"], damage) == ([1, 2, 3, 4], None)


@pytest.mark.usefixtures("measurer")
def test_a_signal_ends_a_paused_run_with_its_checkpoint(tmp_path: Path) -> None:
    def report(_: str) -> None:
        """Send a signal, which another thread receives while the run waits."""
        threading.Timer(0.05, signal.raise_signal, [signal.SIGTERM]).start()

    display = Mock(spec=ProgressDisplay, report=report)
    trainer, files = slopes_trainer(SLOPES, tmp_path / "run", nn.Linear(3, 1), display=display, pauses=True)
    with pytest.raises(Interrupted, match="SIGTERM"), trainer._interrupt.install():
        trainer.run()
    assert (files.checkpoints / "last.pt").exists()
