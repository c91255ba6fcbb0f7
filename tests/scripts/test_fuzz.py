"""Damaged files and words: ``scripts/fuzz.py`` with few inputs."""

import fuzz
import pytest
from helpers.cases import some


@pytest.mark.parametrize("name", some(fuzz.READERS, fuzz.READERS.keys() - {"continued run"}))
def test_readers_refuse_damage_or_return(name: str) -> None:
    assert fuzz.check(fuzz.READERS[name], 12, seed=0).total() >= 1
