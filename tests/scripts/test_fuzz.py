"""Damaged files and words: ``scripts/fuzz.py`` with few inputs."""

import fuzz
import pytest

QUICK = [name for name, reader in fuzz.READERS.items() if reader.cost == 1]


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.minutes) for name in ["continued run"])]
)
def test_readers_refuse_damage_or_return(name: str) -> None:
    assert fuzz.check(fuzz.READERS[name], 12, seed=0).total() >= 1
