"""The probe of fixed work."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rmsexp.system import machine
from rmsexp.train import probe
from rmsexp.train.probe import LARGEST_BUFFER, SWEPT, Probe


def test_a_probe_takes_milliseconds() -> None:
    taken = [probe.probe().take() for _ in range(20)]
    assert 0.0001 < min(times.arithmetic for times in taken) < 0.02
    assert 0.0005 < min(times.memory for times in taken) < 0.1


@pytest.mark.parametrize(
    ("cache", "size"),
    [
        (None, SWEPT),
        (32 << 20, SWEPT),
        (33 << 20, 2 * SWEPT),
        (105 << 20, 4 * SWEPT),
        (1 << 40, LARGEST_BUFFER),
    ],
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


def test_the_memory_is_allocated_when_it_is_first_needed() -> None:
    code = "from rmsexp.train import probe; assert not probe.probe.cache_info().currsize"
    subprocess.run([sys.executable, "-c", code], check=True)
