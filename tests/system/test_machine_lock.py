"""The machine's lock: workers pause while one process measures, and a process that dies frees its locks."""

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch
from helpers.slopes import slopes_trainer
from torch import nn

from rmsexp.measure import layers
from rmsexp.records import record
from rmsexp.system import clock, lock, machine_lock
from rmsexp.system.machine_lock import Pause, measuring, working
from rmsexp.train.interrupt import Interrupted
from rmsexp.train.loop import Trainer

SLOPES = [[[1.0, 2.0, 3.0]], [[3.0, 2.0, 1.0]], [[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a new folder for the locks and poll 50 times as often."""
    monkeypatch.setattr(machine_lock, "FOLDER", tmp_path / "locks")
    monkeypatch.setattr(lock, "POLL_SECONDS", 0.002)
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


def wait_until_locked(name: str) -> None:
    """Wait until somebody holds the lock of a file in the folder."""
    with (machine_lock.FOLDER / name).open("a") as file:
        while machine_lock.try_to_lock(file, fcntl.LOCK_SH):
            fcntl.flock(file, fcntl.LOCK_UN)
            threading.Event().wait(0.001)


def assert_paused(lines: list[str], process: int) -> None:
    """Check that the lines name the process that measures, and its command, unless it has not written them yet."""
    paused, *_, goes_on = lines
    named = rf"paused for the measurement of process ({process} \(.*python.*\)|unknown); goes on when that ends"
    assert re.fullmatch(named, paused.replace("\n", " "))
    assert re.fullmatch(r"going on after a pause of \d+ s", goes_on)


def test_a_worker_pauses_while_somebody_measures(folder: Path) -> None:
    lines: list[str] = []
    with working(lines.append) as pause:
        assert not pause.is_due()
        measurer = Measurer()
        wait_until_locked("measuring.lock")
        assert pause.is_due()
        assert not measurer.started.is_set()  # it waits for the worker

        paused = threading.Event()

        def report(line: str) -> None:
            lines.append(line)
            paused.set()

        def end() -> None:
            paused.wait(60)  # a measurement that ends before the worker looks again pauses nobody
            measurer.started.wait(60)
            measurer.end()

        ender = threading.Thread(target=end)
        ender.start()
        pause.wait(report)
        assert measurer.started.is_set()
        ender.join()
        assert not pause.is_due()
    assert_paused(lines, os.getpid())
    assert folder.stat().st_mode & 0o777 == 0o700
    with measuring(lines.append):  # the worker's lock is free again
        pass


def test_a_second_measurer_waits_and_reports_who_measures() -> None:
    first = Measurer()
    assert first.started.wait(60)
    second = Measurer()
    while not second.lines:
        threading.Event().wait(0.001)
    assert not second.started.is_set()
    first.end()
    assert second.started.wait(60)
    second.end()
    (line,) = second.lines
    assert first.lines == []
    assert line.startswith(f"waiting for the measurement of process {os.getpid()} (")


def test_a_measurer_reports_that_it_waits_for_workers() -> None:
    with working(pytest.fail) as first, working(pytest.fail) as second:
        assert (first.is_due(), second.is_due()) == (False, False)
        measurer = Measurer()
        while not measurer.lines:
            threading.Event().wait(0.001)
        assert not measurer.started.is_set()
    assert measurer.started.wait(60)
    measurer.end()
    assert measurer.lines == ["waiting until the campaign workers on this machine pause"]


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
        assert process.stdout is not None
        assert process.stdout.readline() == "measuring\n"
        lines: list[str] = []

        def kill(text: str) -> None:
            lines.append(text)
            process.kill()

        with working(kill) as pause:
            assert not pause.is_due()
    assert_paused(lines, process.pid)


@pytest.mark.parametrize("reason", ["No locks available", "other users can change"])
def test_without_locks_a_line_says_so_and_work_goes_on(
    reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if reason == "No locks available":
        monkeypatch.setattr(fcntl, "flock", unsupported)
    else:
        folder.mkdir()
        folder.chmod(0o777)
    lines: list[str] = []
    with working(lines.append) as pause:
        assert not pause.is_due()
        pause.wait(lines.append)  # as a worker without work, again and again
    with measuring(lines.append):
        pass
    assert [line.partition(" (")[0] for line in lines] == [
        "warning: this worker does not pause while others measure on this machine",
        "warning: campaign workers on this machine do not pause for this measurement",
    ]
    assert all(reason in line for line in lines)


# --- measurements


def test_benchmarks_take_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator measures at each of its items, and between them the lock is held, too."""
    case = SimpleNamespace(passes="", layers={})
    monkeypatch.setattr(layers, "CASES", {"norms": lambda *_: [case, case]})
    monkeypatch.setattr(layers, "_measure_case", lambda *_: {})
    cases = layers.measure("norms", ["2x8"], torch.float32, 0.001, torch.device("cpu"), lambda _: None)
    next(cases)
    with (machine_lock.FOLDER / "measuring.lock").open() as file:
        assert not machine_lock.try_to_lock(file, fcntl.LOCK_SH)
        cases.close()
        assert machine_lock.try_to_lock(file, fcntl.LOCK_SH)


# --- the trainer


@pytest.fixture
def measurers() -> Iterator[list[Measurer]]:
    """Return a list of measurers, which end after the test."""
    started: list[Measurer] = []
    yield started
    for measurer in started:
        measurer.end()


def trainer_that_is_measured(
    folder: Path, pause: Pause, measurers: list[Measurer], report: Callable[[str], None]
) -> tuple[Trainer, record.RunFolder]:
    """Return a trainer of four steps and its folder; in its second step somebody begins to measure.

    ``report``: gets the lines of its display.
    """
    display = SimpleNamespace(update=lambda *_: None, report_evaluation=lambda _: None, report=report)
    trainer, files = slopes_trainer(SLOPES, folder, nn.Linear(3, 1), display=display, pause=pause)
    batches = trainer.task.batches

    def measured(step: int) -> object:
        if step == 1 and not measurers:
            measurers.append(Measurer())
            wait_until_locked("measuring.lock")
        return batches(step)

    trainer.task.batches = measured
    return trainer, files


def test_a_run_pauses_within_a_step_and_its_clock_excludes_the_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measurers: list[Measurer]
) -> None:
    reading = [0.0]
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: reading[0]))
    steps: list[int] = []
    lines: list[str] = []

    def report(text: str) -> None:
        """End the measuring, an hour later, when the run has paused."""
        lines.append(text)
        if text.startswith("paused"):
            assert measurers[0].started.wait(60)
            steps.append(trainer.state.step)
            reading[0] += 3600
            measurers[0].end()

    with working(pytest.fail) as pause:
        trainer, files = trainer_that_is_measured(tmp_path / "run", pause, measurers, report)
        trainer.run()
    assert (steps, trainer.state.step) == ([2], 4)
    assert_paused(lines, os.getpid())
    assert trainer.clock.seconds == dict.fromkeys(clock.BUCKETS, 0.0)
    rows, damage = files.read_metrics()
    assert ([row["step"] for row in rows if row["split"] == "train"], damage) == ([1, 2, 3, 4], None)


def test_a_signal_ends_a_paused_run_with_its_checkpoint(tmp_path: Path, measurers: list[Measurer]) -> None:
    def report(_: str) -> None:
        """Send a signal, which another thread receives while the run waits."""
        threading.Timer(0.05, signal.raise_signal, [signal.SIGTERM]).start()

    with working(pytest.fail) as pause:
        trainer, _ = trainer_that_is_measured(tmp_path / "run", pause, measurers, report)
        with pytest.raises(Interrupted, match="SIGTERM"), trainer._interrupt.install():
            trainer.run()
        assert measurers[0].started.wait(60)  # only the signal ended the pause
    assert slopes_trainer(SLOPES, tmp_path / "run", nn.Linear(3, 1))[0].state.step == 2
