"""The calibration, which measures the reference of the quiet machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import measuring_work
from helpers.reading_and_retrieval import tiny

from rmsexp.commands import timing
from rmsexp.measure import calibration, new_process, probes
from rmsexp.measure.probes import Times
from rmsexp.records.record import FEWEST_PROBES
from rmsexp.train.contention import Contention

QUIET = Times(arithmetic=0.001, memory=0.002)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "FOLDER", tmp_path / "machines")


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
    stored = probes.read()
    assert stored is not None
    assert (stored.arithmetic, stored.memory) == pytest.approx((0.001005, 0.00205))
    assert (stored.processes, stored.number) == (5, 20 * FEWEST_PROBES)
    arithmetic, memory, path = capsys.readouterr().out.splitlines()
    assert arithmetic == "arithmetic  1.005 ms; 5 processes 1.00 to 1.00 times that"
    assert memory == "memory      2.050 ms; 5 processes 0.98 to 1.02 times that"
    assert Path(path.split()[1]).is_file()


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

    def batches(train: Callable[[], None]) -> list[Times]:
        before = len(trained)
        train()
        assert len(trained) > before > 0
        assert torch.get_num_threads() == 1
        return [QUIET] * 4

    monkeypatch.setattr(calibration, "WORDS", (*tiny("order_embedding"), "threads=1", "device=cpu"))
    monkeypatch.setattr(calibration.steps, "make_stepper", make)
    monkeypatch.setattr(calibration, "_batches", batches)
    assert calibration.quiet_batches(lambda _: None) == {"batches": [QUIET] * 4}
    assert trained == list(range(len(trained)))


@pytest.mark.parametrize(("slow", "status"), [(4, 0), (7, 1)])
def test_nothing_is_stored_if_a_quarter_of_the_batches_is_slow(
    found: list[list[Times]], capsys: pytest.CaptureFixture[str], slow: int, status: int
) -> None:
    every = [QUIET] * (20 - slow) + [Times(0.001, 0.004)] * slow
    found += [every[start::5] for start in range(5)]
    assert timing.main(["--calibrate"]) == status
    assert ("a quarter of the time, memory took 2.00 times its median" in capsys.readouterr().err) == bool(status)
    assert (probes.read() is None) == bool(status)


@pytest.mark.parametrize("state", ["contended", "unknown"])
def test_nothing_is_stored_if_something_else_is_busy(
    state: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Contention, "report", lambda _: {"state": state, "waited": None, "steal": None})
    monkeypatch.setattr(new_process, "in_new_process", lambda *_: {"batches": calibration._batches(lambda: None)})
    assert timing.main(["--calibrate"]) == 1
    assert "rmsexp: the machine was not quiet" in capsys.readouterr().err
    assert probes.read() is None


def test_a_calibration_takes_no_other_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert timing.main(["--calibrate", "threads=1"]) == 2
    assert "--calibrate takes no other words, and cannot be abbreviated" in capsys.readouterr().err
