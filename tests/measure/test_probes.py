"""Probes of fixed work, the reference of the quiet machine, its calibration, and what they say of a timing."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.reading_and_retrieval import tiny

from rmsexp.commands import timing
from rmsexp.measure import calibration, new_process, probes
from rmsexp.measure.calibration import PROBES
from rmsexp.measure.probes import LARGEST_BUFFER, SWEPT, WORK, Probe, ProbedContention, Times
from rmsexp.records.frames.time_states import timing_state
from rmsexp.system import machine
from rmsexp.train.contention import Contention
from rmsexp.train.provenance import machine_id

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
REFERENCE = probes.Reference(machine_id(), WORK, "2025-01-01T00:00:00+00:00", 5, 400, arithmetic=0.001, memory=0.002)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(probes, "FOLDER", tmp_path / "machines")
    return tmp_path


@pytest.mark.parametrize(
    ("cache", "size"), [(None, SWEPT), (32 << 20, SWEPT), (33 << 20, 2 * SWEPT), (1 << 40, LARGEST_BUFFER)]
)
def test_the_buffer_is_twice_the_largest_cache_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch, cache: int | None, size: int
) -> None:
    monkeypatch.setattr(machine, "largest_cache", lambda: cache)
    assert Probe()._buffer.nbytes == size


def test_probes_sweep_the_parts_of_the_buffer_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "largest_cache", lambda: SWEPT)
    work, parts = Probe(), list[int]()
    for _ in range(4):
        parts.append(work._next)
        work.take()
    assert parts == [0, 1, 0, 1]


def test_the_work_stays_the_same() -> None:
    """Repeated divisions neither grow nor become denormal, which would take longer."""
    work = Probe()
    for _ in range(20):
        work.take()
    assert ((work._numbers == 1.25) | (work._numbers == 1 / 1.25)).all()


def test_a_reference_is_read_as_it_was_written_whatever_the_umask(capsys: pytest.CaptureFixture[str]) -> None:
    assert probes.read() is None
    before = os.umask(0o002)
    try:
        path = probes.write(REFERENCE)
    finally:
        os.umask(before)
    assert path.parent.name == machine_id()
    assert probes.read() == REFERENCE
    assert capsys.readouterr().err == ""


def change(**changes: Any) -> Callable[[Path], None]:
    return lambda path: path.write_text(json.dumps(asdict(REFERENCE) | changes))


@pytest.mark.parametrize(
    ("damage", "key"),
    [
        (lambda path: path.write_text("{"), "is not JSON"),
        (change(memory=0.0), "memory"),
        (change(memory="0.1"), "memory"),
        (change(machine="another"), "another machine"),
        (change(work="more"), "older probe"),
    ],
)
def test_a_reference_that_cannot_be_used_is_reported(
    damage: Callable[[Path], None], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(probes.write(REFERENCE))
    assert probes.read() is None
    (notice,) = capsys.readouterr().err.splitlines()
    assert key in notice
    assert "--calibrate" in notice


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[Times]:
    """Return a list from which probes take their times, the first entry first; there is no other evidence."""
    remaining: list[Times] = []
    undisturbed = {
        "state": "undisturbed",
        "waited": 0.0,
        "steal": 0.0,
        "shared": False,
        "based_on": ["waiting", "steal"],
    }
    monkeypatch.setattr(Contention, "report", lambda _: undisturbed)
    monkeypatch.setattr(probes, "probe", lambda: SimpleNamespace(take=lambda: remaining.pop(0)))
    monkeypatch.setattr(probes, "read", lambda: REFERENCE)
    return remaining


def probed(times: list[Times], slowdowns: Sequence[tuple[float, float]]) -> ProbedContention:
    """Return a contention after probes that are slower than the reference by these factors."""
    contention = ProbedContention(CPU)
    for arithmetic, memory in slowdowns:
        times.append(Times(arithmetic * REFERENCE.arithmetic, memory * REFERENCE.memory))
        contention.probe()
    return contention


def test_the_report_has_the_medians_of_the_probes_beside_the_other_evidence(times: list[Times]) -> None:
    fast, slow = [(0.4, 0.4)] * 9, [(9.0, 9.0)] * 9  # the median of these and of the others is one of the others
    report = probed(times, [*fast, *[(1.5, 2.5)] * 3, *slow]).report()
    assert (report["state"], report["based_on"]) == ("undisturbed", ["waiting", "steal"])
    taken = report["probes"]
    assert (taken["number"], taken["reference"]) == (21, asdict(REFERENCE))
    assert taken["median"] == pytest.approx({"arithmetic": 0.0015, "memory": 0.005})
    assert report == json.loads(json.dumps(report))
    assert timing_state([{"contention": report}]) == "disturbed"  # as a reader of the record finds


def test_a_probe_much_slower_than_those_before_it_is_a_spike(times: list[Times]) -> None:
    contention = probed(times, [(1.0, 1.0)] * 5)
    times += [Times(0.001, 0.0049), Times(0.001, 0.0051), Times(0.0051, 0.001), Times(0.001, 0.002)]
    assert [contention.probe() for _ in range(4)] == [False, True, True, False]
    assert contention.report()["probes"]["spikes"] == 2


@pytest.mark.parametrize(("before", "now"), [([(9.0, 9.0)] * 30, (9.0, 9.0)), ([(1.0, 1.0)] * 4, (900.0, 900.0))])
def test_a_steadily_slow_machine_and_the_first_probes_are_no_spikes(
    times: list[Times], before: list[tuple[float, float]], now: tuple[float, float]
) -> None:
    contention = probed(times, before)
    times.append(Times(now[0] * 0.001, now[1] * 0.002))
    assert not contention.probe()


def test_no_probe_is_taken_on_a_gpu(times: list[Times]) -> None:
    contention = ProbedContention(CUDA)
    assert not contention.probe()
    assert contention.report()["probes"] is None
    assert not times


# --- calibration

QUIET = Times(arithmetic=0.001, memory=0.002)


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
    assert (stored.arithmetic, stored.memory) == pytest.approx((0.001005, 0.00205))
    assert (stored.processes, stored.number) == (5, 5 * PROBES)
    arithmetic, memory, path = capsys.readouterr().out.splitlines()
    assert arithmetic == "arithmetic  1.005 ms; 5 processes 1.00 to 1.00 times the median"
    assert memory == "memory      2.050 ms; 5 processes 0.98 to 1.02 times the median"
    assert Path(path.split()[1]).is_file()


@pytest.mark.usefixtures("small_synthetic_data")
@pytest.mark.parametrize("state", ["undisturbed", "disturbed", "unknown"])
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
    if state == "undisturbed":
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
