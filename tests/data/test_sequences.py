"""Token sequences in two arrays: they are indexed like lists, sliced, and read from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmsexp.data.sequences import Sequences, offsets

LISTS = [[5, 2], [], [6, 7, 2], [2]]


def rows(sequences: Sequences) -> list[list[int]]:
    return [sequence.tolist() for sequence in sequences]


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=8))
def test_lists_are_returned_unchanged(lists: list[list[int]]) -> None:
    sequences = Sequences.from_lists(lists)
    assert rows(sequences) == lists
    assert len(sequences) == len(lists)
    assert sequences.lengths.tolist() == [len(ids) for ids in lists]
    assert (sequences.tokens.dtype, sequences.offsets.dtype, sequences.lengths.dtype) == (np.int32, np.int64, np.int64)


def test_sequences_are_indexed_like_lists() -> None:
    sequences = Sequences(np.array([5, 2, 6, 7, 2], dtype=np.int32), np.array([0, 2, 5]))
    assert sequences[-1].tolist() == sequences[np.int64(1)].tolist() == [6, 7, 2]
    for beyond in (2, -3):
        with pytest.raises(IndexError):
            sequences[beyond]


@pytest.mark.parametrize("count", range(len(LISTS) + 2))
def test_first_sequences_share_the_memory(count: int) -> None:
    sequences = Sequences.from_lists(LISTS)
    first = sequences.first(count)
    assert rows(first) == LISTS[:count]
    assert len(first.tokens) == sum(map(len, LISTS[:count]))
    assert np.shares_memory(first.tokens, sequences.tokens) == bool(count)


def test_sequences_are_appended_to_files_and_memory_mapped(tmp_path: Path) -> None:
    for _ in range(2):
        Sequences.from_lists(LISTS).save(tmp_path, "train")
    stored = Sequences.load(tmp_path, "train")
    assert not stored.tokens.flags.writeable
    assert (stored.tokens.dtype, stored.offsets.dtype) == (np.int32, np.int64)
    assert rows(stored) == LISTS * 2
    assert stored.count(2) == 6
    with (tmp_path / "train.tokens").open("ab") as file:
        file.write(bytes(4))
    with pytest.raises(ValueError, match=r"13 tokens, not 12"):
        Sequences.load(tmp_path, "train")


def test_offsets_start_at_0_and_end_at_the_sum() -> None:
    assert offsets([2, 0, 3]).tolist() == [0, 2, 2, 5]
    assert offsets(iter([])).tolist() == [0]
    assert offsets([2**31, 1])[-1] == 2**31 + 1
