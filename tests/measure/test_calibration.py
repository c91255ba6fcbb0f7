"""The calibration, which measures the reference of the quiet machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import measuring_work
from helpers.reading_and_retrieval import tiny

from rmsexp.commands import timing
from rmsexp.measure import calibration, new_process
from rmsexp.records.record import FEWEST_PROBES
from rmsexp.train import quiet
from rmsexp.train.probe import Times

QUIET = Times(arithmetic=0.001, memory=0.002)
LIMITS = ("OTHERS_LIMIT", "WAITED_LIMIT", "STEAL_LIMIT")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "FOLDER", tmp_path / "machines")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[list[Times]]:
    """Return a list of the batches that the next processes find."""
    remaining: list[list[Times]] = []
    monkeypatch.setattr(new_process, "in_new_process", lambda *_: {"batches": remaining.pop(0)})
    return remaining


def test_the_median_over_processes_is_stored(found: list[list[Times]], capsys: pytest.CaptureFixture[str]) -> None:
    """Batches of one process agree better than those of two, so processes count, not batches."""
    slower = Times(0.00101, 0.0021)
    found += [[slower] * 4, [QUIET] * 4, [QUIET, QUIET, slower, slower], [QUIET] * 4, [slower] * 4]
    assert timing.main(["--calibrate"]) == 0
    stored = quiet.read()
    assert stored is not None
    assert stored.times == pytest.approx((0.001005, 0.00205))
    assert (stored.processes, stored.number) == (5, 20 * FEWEST_PROBES)
    arithmetic, memory, path = capsys.readouterr().out.splitlines()
    assert arithmetic == "arithmetic  1.005 ms; 5 processes 1.00 to 1.00 times that"
    assert memory == "memory      2.050 ms; 5 processes 0.98 to 1.02 times that"
    assert Path(path.split()[1]).is_file()
    found += [[Times(0.0011, 0.002)] * 4] * 5
    assert timing.main(["--calibrate"]) == 0
    assert "that; 1.09 times the reference of 20" in capsys.readouterr().out.splitlines()[0]


def test_the_probes_are_taken_in_five_fresh_processes() -> None:
    lines: list[str] = []
    calibration.calibrate(lines.append, measuring_work.batches_of_probes)
    ids = re.findall(r"process \d of 5: process id (\d+)", "\n".join(lines))
    assert len({*ids, str(os.getpid())}) == 6


@pytest.mark.usefixtures("small_synthetic_data")
def test_a_process_is_set_up_like_a_measured_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that is not preceded by training steps, or with another number of threads, finds other speeds."""
    trained: list[int] = []
    make_stepper = calibration.steps.make_stepper

    def make(*arguments: Any) -> Any:
        stepper = make_stepper(*arguments)
        take = stepper.take
        monkeypatch.setattr(stepper, "take", lambda step, batches: (trained.append(step), take(step, batches)))
        return stepper

    def batch(train: Callable[[], None]) -> tuple[Times, str]:
        before = len(trained)
        train()
        assert len(trained) > before > 0
        assert torch.get_num_threads() == 1
        return QUIET, ""

    monkeypatch.setattr(calibration, "WORDS", (*tiny("order_embedding"), "threads=1", "device=cpu"))
    monkeypatch.setattr(calibration.steps, "make_stepper", make)
    monkeypatch.setattr(calibration, "_batch", batch)
    assert calibration.quiet_batches(lambda _: None) == {"batches": [QUIET] * 4}
    assert trained == list(range(len(trained)))


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Times, str]]:
    """Return a list of the batches that are measured next: seconds, and what else was busy."""
    remaining: list[tuple[Times, str]] = []
    monkeypatch.setattr(calibration, "_batch", lambda _: remaining.pop(0))
    return remaining


def nothing() -> None:
    """Take no training step."""


def test_disturbed_batches_are_repeated(batches: list[tuple[Times, str]]) -> None:
    slow = (Times(9.0, 9.0), "other processes used 2 cores")
    batches += [slow, (QUIET, ""), (QUIET, ""), slow, (QUIET, ""), (QUIET, "")]
    assert calibration._batches(nothing) == [QUIET] * 4


def test_nothing_is_stored_if_others_are_busy(
    batches: list[tuple[Times, str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "PATIENCE", 0.01)
    monkeypatch.setattr(new_process, "in_new_process", lambda *_: {"batches": calibration._batches(nothing)})
    batches += [(QUIET, ""), *[(QUIET, "other processes used 1.20 cores")] * 10**5]
    assert timing.main(["--calibrate"]) == 1
    error = capsys.readouterr().err.splitlines()
    assert "rmsexp: the machine was not quiet: other processes used 1.20 cores; nothing was stored" in error
    assert quiet.read() is None


@pytest.mark.parametrize(("slow", "status"), [(4, 0), (7, 1)])
def test_nothing_is_stored_if_a_quarter_of_the_batches_is_slow(
    found: list[list[Times]], capsys: pytest.CaptureFixture[str], slow: int, status: int
) -> None:
    every = [QUIET] * (20 - slow) + [Times(0.001, 0.004)] * slow
    found += [every[start::5] for start in range(5)]
    assert timing.main(["--calibrate"]) == status
    assert ("a quarter of the time, memory took 2.00 times its median" in capsys.readouterr().err) == bool(status)
    assert (quiet.read() is None) == bool(status)


@pytest.mark.parametrize(("limit", "message"), [*zip(LIMITS, ("cores", "CPU time", "the host"), strict=True)])
def test_a_batch_names_what_else_was_busy(limit: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIMITS:
        monkeypatch.setattr(calibration, name, -10.0 if name == limit else 1e9)
    times, disturbance = calibration._batch(work)
    assert min(times) > 0
    assert message in disturbance


@pytest.mark.parametrize(("busy", "message"), [(5.5, ""), (6.5, "other processes used 0.25 cores (at most 0.1)")])
def test_the_own_work_is_not_that_of_others(busy: float, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the ``busy`` seconds of all cores in six seconds five are this process's own."""
    monkeypatch.setattr(calibration.clock, "Stopwatch", lambda: SimpleNamespace(seconds=6.0))
    monkeypatch.setattr(calibration, "_busy_seconds", iter([100.0, 100.0 + busy]).__next__)
    monkeypatch.setattr(calibration, "_own_seconds", iter([20.0, 25.0]).__next__)
    for name in LIMITS[1:]:
        monkeypatch.setattr(calibration, name, 1e9)
    assert calibration._batch(work)[1] == message


def test_a_quiet_batch_has_no_disturbance(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIMITS:
        monkeypatch.setattr(calibration, name, 1e9)
    assert calibration._batch(work)[1] == ""


def work() -> None:
    matrix = torch.ones(256, 256)
    for _ in range(10):
        torch.mm(matrix, matrix)


def test_a_calibration_takes_no_other_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert timing.main(["--calibrate", "threads=1"]) == 2
    assert "--calibrate takes no other words, and cannot be abbreviated" in capsys.readouterr().err
