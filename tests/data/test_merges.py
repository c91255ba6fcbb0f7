"""Merges are those of subword-nmt, from less memory."""

from __future__ import annotations

import contextlib
import io
import random
from collections import Counter

import pytest
from subword_nmt.learn_bpe import learn_bpe

from rmsexp.data import merges


def original(words: Counter[str], most: int) -> list[tuple[str, ...]]:
    found = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):
        learn_bpe([f"{word} {count}" for word, count in words.items()], found, most, is_dict=True)
    return [tuple(line.split(" ")) for line in found.getvalue().split("\n")[1:-1]]


@pytest.mark.parametrize("letters", ["ab", "abcé", "aaaaabcdefghijkl\\.<w>/"])
def test_merges_equal_those_of_subword_nmt(letters: str) -> None:
    """Few letters give overlapping pairs, and the same symbol by different merges; 400 merges prune several times."""
    generator = random.Random(letters)
    for most in (50, 400):
        drawn = ("".join(generator.choices(letters, k=generator.randint(1, 14))) for _ in range(1000))
        words = Counter({word: generator.randint(1, 30) ** 2 for word in drawn})
        expected = original(words, most)
        assert merges.learn(words, most) == expected
        assert not words


def test_merges_end_where_no_pair_occurs_twice() -> None:
    assert merges.learn(Counter({"ab": 1, "cd": 2}), 9) == [("c", "d</w>")]
    assert merges.learn(Counter({"a": 5}), 9) == []
    assert merges.learn(Counter(), 9) == []
