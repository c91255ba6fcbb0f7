"""The calibration, which measures the reference of the quiet machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
from helpers import measuring_work
from helpers.reading_and_retrieval import tiny

from rmsexp.commands import timing
from rmsexp.measure import calibration, new_process, probes
from rmsexp.measure.calibration import PROBES
from rmsexp.measure.probes import Times
from rmsexp.train.contention import Contention

QUIET = Times(arithmetic=0.001, memory=0.002)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "FOLDER", tmp_path / "machines")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Times]:
    """Return a list of what the next processes find."""
    remaining: list[Times] = []
    monkeypatch.setattr(new_process, "in_new_process", lambda *_: {"seconds": remaining.pop(0)})
    return remaining


def test_the_median_over_processes_is_stored(found: list[Times], capsys: pytest.CaptureFixture[str]) -> None:
    found += [Times(0.00101, 0.0021), QUIET, Times(0.001005, 0.00205), QUIET, Times(0.00101, 0.0021)]
    assert timing.main(["--calibrate"]) == 0
    stored = probes.read()
    assert stored is not None
    assert (stored.arithmetic, stored.memory) == pytest.approx((0.001005, 0.00205))
    assert (stored.processes, stored.number) == (5, 5 * PROBES)
    arithmetic, memory, path = capsys.readouterr().out.splitlines()
    assert arithmetic == "arithmetic  1.005 ms; 5 processes 1.00 to 1.00 times that"
    assert memory == "memory      2.050 ms; 5 processes 0.98 to 1.02 times that"
    assert Path(path.split()[1]).is_file()


def test_the_probes_are_taken_in_five_fresh_processes() -> None:
    lines: list[str] = []
    calibration.calibrate(lines.append, measuring_work.probed)
    ids = re.findall(r"process \d of 5: process id (\d+)", "\n".join(lines))
    assert len({*ids, str(os.getpid())}) == 6


@pytest.mark.usefixtures("small_synthetic_data")
@pytest.mark.parametrize("state", ["clear", "contended", "unknown"])
def test_a_process_trains_between_its_probes_and_fails_if_something_else_is_busy(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[int] = []
    watch = Contention.watch

    def watching(self: Contention) -> object:
        assert torch.get_num_threads() == 1  # with another number of threads, a probe finds other speeds
        watched.append(1)
        return watch(self)

    monkeypatch.setattr(calibration, "WORDS", (*tiny("order_embedding"), "threads=1", "device=cpu"))
    monkeypatch.setattr(calibration, "WARMUP_SECONDS", 0.01)
    monkeypatch.setattr(calibration, "BLOCK_SECONDS", 0.001)
    monkeypatch.setattr(Contention, "watch", watching)
    monkeypatch.setattr(Contention, "report", lambda _: {"state": state, "waited": None, "steal": None})
    if state == "clear":
        assert calibration.quiet_probes(lambda _: None) == {"seconds": QUIET}
    else:
        with pytest.raises(ValueError, match="not quiet"):
            calibration.quiet_probes(lambda _: None)
    assert len(watched) == PROBES


@pytest.mark.parametrize(("slow", "status"), [(0.0023, 0), (0.0025, 1)])
def test_nothing_is_stored_if_a_process_was_slow(
    found: list[Times], capsys: pytest.CaptureFixture[str], slow: float, status: int
) -> None:
    found += [*[QUIET] * 4, Times(0.001, slow)]
    assert timing.main(["--calibrate"]) == status
    assert ("memory took" in capsys.readouterr().err) == bool(status)
    assert (probes.read() is None) == bool(status)
    assert timing.main(["--calibrate", "threads=1"]) == 2  # it takes no other words
