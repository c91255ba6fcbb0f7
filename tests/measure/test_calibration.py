"""The calibration, which measures the reference of the quiet machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmsexp import timing
from rmsexp.measure import calibration
from rmsexp.record import FEWEST_PROBES
from rmsexp.train import quiet
from rmsexp.train.probe import Times

QUIET = Times(arithmetic=0.001, memory=0.002)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "FOLDER", tmp_path / "machines")


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Times, str]]:
    """Return a list of the batches that are measured next: seconds, and what else was busy."""
    remaining: list[tuple[Times, str]] = []
    monkeypatch.setattr(calibration, "_batch", lambda: remaining.pop(0))
    return remaining


def test_the_median_of_the_quiet_batches_is_stored(
    batches: list[tuple[Times, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    slow = (Times(9.0, 9.0), "other processes used 2 cores")
    batches += [slow, *[(QUIET, "")] * 9, slow, (Times(0.00101, 0.0021), ""), *[(QUIET, "")] * 10]
    assert timing.main(["--calibrate"]) == 0
    assert not batches
    stored = quiet.read()
    assert stored is not None
    assert (stored.times, stored.number) == (QUIET, calibration.BATCHES * FEWEST_PROBES)
    arithmetic, memory, path = capsys.readouterr().out.splitlines()
    assert arithmetic == "arithmetic  1.000 ms; batches of 20 probes 1.00 to 1.01 times that"
    assert memory == "memory      2.000 ms; batches of 20 probes 1.00 to 1.05 times that"
    assert Path(path.split()[1]).is_file()
    batches += [(Times(0.0011, 0.002), "")] * calibration.BATCHES
    assert timing.main(["--calibrate"]) == 0
    assert "that; 1.10 times the reference of 20" in capsys.readouterr().out.splitlines()[0]


def test_nothing_is_stored_if_others_are_busy(
    batches: list[tuple[Times, str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "PATIENCE", 0.01)
    batches += [(QUIET, ""), *[(QUIET, "other processes used 1.20 cores")] * 10**5]
    assert timing.main(["--calibrate"]) == 1
    error = capsys.readouterr().err.splitlines()
    assert "rmsexp: the machine was not quiet: other processes used 1.20 cores; nothing was stored" in error
    assert quiet.read() is None


@pytest.mark.parametrize(("slow", "status"), [(4, 0), (7, 1)])
def test_nothing_is_stored_if_a_quarter_of_the_batches_is_slow(
    batches: list[tuple[Times, str]], capsys: pytest.CaptureFixture[str], slow: int, status: int
) -> None:
    batches += [*[(QUIET, "")] * (calibration.BATCHES - slow), *[(Times(0.001, 0.004), "")] * slow]
    assert timing.main(["--calibrate"]) == status
    assert ("a quarter of the time, memory took 2.00 times its median" in capsys.readouterr().err) == bool(status)
    assert (quiet.read() is None) == bool(status)


@pytest.mark.parametrize(
    ("limit", "message"),
    [("OTHERS_LIMIT", "cores"), ("WAITED_LIMIT", "CPU time"), ("STEAL_LIMIT", "the host")],
)
def test_a_batch_names_what_else_was_busy(limit: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTHERS_LIMIT", "WAITED_LIMIT", "STEAL_LIMIT"):
        monkeypatch.setattr(calibration, name, -10.0 if name == limit else 1e9)
    monkeypatch.setattr(calibration, "BLOCK_SECONDS", 0.005)
    times, disturbance = calibration._batch()
    assert min(times) > 0
    assert message in disturbance


def test_a_quiet_batch_has_no_disturbance(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTHERS_LIMIT", "WAITED_LIMIT", "STEAL_LIMIT"):
        monkeypatch.setattr(calibration, name, 1e9)
    assert calibration._batch()[1] == ""


def test_a_calibration_takes_no_other_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert timing.main(["--calibrate", "threads=1"]) == 2
    assert "--calibrate takes no other words" in capsys.readouterr().err
