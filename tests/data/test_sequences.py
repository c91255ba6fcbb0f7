"""Token sequences in two arrays, like lists; batches, which keep their limits; padded arrays."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmsexp.data.sequences import Sequences, by_sentences, by_tokens, by_tokens_carried, cycled, offsets, padded

LISTS = [[5, 2], [], [6, 7, 2], [2]]
sentences = st.lists(st.integers(1, 60), min_size=1, max_size=150).map(np.array)
sentence_pairs = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=150)
sizes = st.integers(1, 40)


def rows(sequences: Sequences) -> list[list[int]]:
    return [sequence.tolist() for sequence in sequences]


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=8))
def test_sequences_are_like_lists(lists: list[list[int]]) -> None:
    sequences = Sequences.from_lists(lists)
    assert rows(sequences) == lists
    assert len(sequences) == len(lists)
    assert sequences.lengths.tolist() == [len(ids) for ids in lists]
    assert (sequences.tokens.dtype, sequences.offsets.dtype, sequences.lengths.dtype) == (np.int32, np.int64, np.int64)
    assert [sequences[np.int64(i - len(lists))].tolist() for i in range(len(lists))] == lists
    for beyond in (len(lists), -len(lists) - 1):
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
    with (tmp_path / "train.tokens").open("ab") as file:
        file.write(bytes(4))
    with pytest.raises(ValueError, match=r"^train.tokens and train.lengths do not match$"):
        Sequences.load(tmp_path, "train")


def test_offsets_are_numbers_of_64_bits() -> None:
    assert offsets([2**31, 1]).tolist() == [0, 2**31, 2**31 + 1]


def shuffled(count: int) -> np.ndarray:
    return np.random.default_rng(count).permutation(count)


@settings(deadline=None)
@given(sentences, sizes, st.integers(1, 5))
def test_by_sentences_sorts_pools_and_cuts_them_into_full_batches(
    lengths: np.ndarray, batch_size: int, pool: int
) -> None:
    order = shuffled(len(lengths))
    batches = by_sentences(lengths, order, batch_size, pool)
    assert len(batches) == -(-len(lengths) // batch_size)
    assert {len(batch) for batch in batches[:-1]} <= {batch_size}
    for start in range(0, len(batches), pool):
        indices = np.concatenate(batches[start : start + pool])
        assert indices.dtype == np.int64
        assert sorted(indices) == sorted(order[start * batch_size : (start + pool) * batch_size])
        assert (np.diff(lengths[indices]) <= 0).all()


@settings(deadline=None)
@given(sentences, st.integers(1, 200), sizes)
def test_by_tokens_ends_a_batch_only_where_one_more_sentence_would_exceed_the_limit(
    lengths: np.ndarray, tokens: int, pool: int
) -> None:
    order = shuffled(len(lengths))
    pools = by_tokens(lengths, order, tokens, pool)
    assert len(pools) == -(-len(lengths) // pool)
    for number, batches in enumerate(pools):
        expected: list[list[int]] = [[]]
        for index in sorted(order[number * pool : (number + 1) * pool].tolist(), key=lengths.__getitem__):
            if expected[-1] and (len(expected[-1]) + 1) * lengths[index] > tokens:
                expected.append([])
            expected[-1].append(index)
        assert [batch.tolist() for batch in batches] == expected
        assert all(batch.dtype == np.int64 for batch in batches)


def literal_toolkit(sources: list[int], targets: list[int], tokens: int, pool: int) -> list[list[int]]:
    """Return the batches of an epoch by the rules of zero, reading pair after pair (``batcher``, ``token_indexer``)."""

    def divided(buffer: list[int]) -> list[list[int]]:
        batches: list[list[int]] = [[]]
        for pair in sorted(buffer, key=lambda pair: max(sources[pair], targets[pair])):
            longest = [max(side[i] for i in [*batches[-1], pair]) for side in (sources, targets)]
            if batches[-1] and any((len(batches[-1]) + 1) * length >= tokens for length in longest):
                batches.append([])
            batches[-1].append(pair)
        return batches

    used: list[list[int]] = []
    buffer: list[int] = []
    for pair in range(len(sources)):
        buffer.append(pair)
        if len(buffer) < pool and pair < len(sources) - 1:
            continue
        carried: list[int] = []
        for batch in divided(buffer):
            if max(sum(sources[i] for i in batch), sum(targets[i] for i in batch)) < tokens * 0.5:
                carried += batch
            else:
                used.append(batch)
        buffer = carried
    return used


@settings(deadline=None)
@given(sentence_pairs, st.integers(1, 300), sizes)
@example([(2, 1)], 4, 1)  # a batch of half the tokens
def test_by_tokens_carried_equals_the_literal_rules(pairs: list[tuple[int, int]], tokens: int, pool: int) -> None:
    sources, targets = (np.array(side) for side in zip(*pairs, strict=True))
    pools = by_tokens_carried(sources, targets, np.arange(len(pairs)), tokens, pool)
    batches = [batch for batches in pools for batch in batches]
    assert [batch.tolist() for batch in batches] == literal_toolkit(sources.tolist(), targets.tolist(), tokens, pool)
    assert all(batch.dtype == np.int64 for batch in batches)


sequences = st.lists(st.lists(st.integers(1, 99), max_size=9).map(lambda ids: np.array(ids, np.int32)), min_size=1)


@pytest.mark.parametrize("fill", [padded, cycled])
@settings(deadline=None)
@given(rows=sequences)
def test_every_position_of_a_batch(fill: Callable[..., tuple[np.ndarray, np.ndarray]], rows: list[np.ndarray]) -> None:
    tokens, mask = fill(rows, 7)
    assert tokens.shape == mask.shape == (len(rows), max(map(len, rows)))
    assert (tokens.dtype, mask.dtype) == (np.int64, np.bool_)
    for row, row_tokens, row_mask in zip(rows, tokens, mask, strict=True):
        for place, (token, real) in enumerate(zip(row_tokens, row_mask, strict=True)):
            repeated = [*row, 7]
            after = 7 if fill is padded else repeated[place % len(repeated)]
            assert (token, real) == ((row[place], True) if place < len(row) else (after, False))
