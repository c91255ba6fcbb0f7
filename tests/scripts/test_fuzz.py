"""Damaged files and words: ``scripts/fuzz.py`` with few inputs."""

from __future__ import annotations

from dataclasses import replace

import fuzz
import pytest

QUICK = [name for name, reader in fuzz.READERS.items() if reader.cost == 1]


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.minutes) for name in ["continued run"])]
)
def test_readers_refuse_damage_or_return(name: str) -> None:
    assert fuzz.check(fuzz.READERS[name], 12, seed=0).total() >= 1


def test_changed_results_other_exceptions_and_long_messages_are_findings() -> None:
    contents = iter(range(1000))
    reader = fuzz.Reader(lambda: None, lambda *_: None, lambda _: next(contents), right=True)
    with pytest.raises(AssertionError, match="changed the result"):
        fuzz.check(reader, 2, seed=0)
    with pytest.raises(ZeroDivisionError):
        fuzz.check(replace(reader, read=lambda _: 1 / 0, right=False), 2, seed=0)
    assert fuzz.poor("a\nb\nc")
    assert not fuzz.poor("mine.yaml is damaged")
