"""Beam search against beam searches on lists, and in edge cases."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from rmsexp.metrics.beam_search import RULES, SearchOptions, beam_search

FIRST, EOS = -1, 0
SIZE = 997

LogProbabilities = Callable[[tuple[int, ...]], np.ndarray]


@dataclass(frozen=True)
class Hashed:
    """A decoder state: the sentence of each row, and a hash of all tokens that the row has read."""

    sentences: Tensor
    read: Tensor

    def select(self, rows: Tensor, *, memory: bool) -> Hashed:
        if not memory:
            assert torch.equal(self.sentences[rows], self.sentences)
        return Hashed(self.sentences[rows] if memory else self.sentences, self.read[rows])


@dataclass
class Model:
    """A model whose logits come from a random table and depend on the sentence and the whole prefix."""

    seed: int
    vocabulary: int
    table: Tensor = field(init=False)
    rows: list[int] = field(default_factory=list)  # number of rows at each step

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.table = 2 * torch.randn(SIZE, self.vocabulary, generator=generator)

    def step(self, tokens: Tensor, state: Hashed) -> tuple[Tensor, Hashed]:
        self.rows.append(len(tokens))
        read = (31 * state.read + tokens + 2) % SIZE
        return self.table[(read + 101 * state.sentences) % SIZE], Hashed(state.sentences, read)

    def search(self, sentences: list[int], max_lengths: list[int], options: SearchOptions) -> list[list[int]]:
        state = Hashed(torch.tensor(sentences), torch.zeros(len(sentences), dtype=torch.long))
        return beam_search(self.step, state, torch.tensor(max_lengths), FIRST, options, EOS)

    def log_probabilities(self, sentence: int) -> LogProbabilities:
        @functools.cache
        def following(prefix: tuple[int, ...]) -> np.ndarray:
            read = 0
            for token in (FIRST, *prefix):
                read = (31 * read + token + 2) % SIZE
            return torch.log_softmax(self.table[(read + 101 * sentence) % SIZE], 0).numpy()

        return following


def normalised(total: float | np.float32, length: int, options: SearchOptions) -> float:
    return float(total) / (length if options.normalisation == "length" else ((5 + length) / 6) ** options.alpha)


def literal(following: LogProbabilities, max_length: int, options: SearchOptions) -> list[int]:
    """Return the translation of one sentence by a beam search on lists, like ``gen_sample`` of Nematus."""
    live: list[tuple[np.float32, tuple[int, ...]]] = [(np.float32(0), ())]
    ended: list[tuple[np.float32, tuple[int, ...]]] = []
    for length in range(1, max_length + 1):
        candidates = [
            (total + value, (*prefix, token))
            for total, prefix in live
            for token, value in enumerate(following(prefix))
            if not (options.forbid_empty and length == 1 and token == EOS)
        ]
        best = sorted(candidates, key=lambda candidate: -candidate[0])[: options.beam - len(ended)]
        ended += [candidate for candidate in best if candidate[1][-1] == EOS]
        live = [candidate for candidate in best if candidate[1][-1] != EOS]
        if not live:
            break
    _, tokens = max(ended + live, key=lambda candidate: normalised(candidate[0], len(candidate[1]), options))
    return [token for token in tokens if token != EOS]


def literal_toolkit(following: LogProbabilities, max_length: int, options: SearchOptions) -> tuple[list[int], int]:
    """Return the translation of one sentence by the rules of zero on lists, and the number of decoder steps."""
    live: list[tuple[np.float32, tuple[int, ...]]] = [(np.float32(0), ())]
    pool: list[tuple[float, tuple[int, ...]]] = []
    time = 0
    while time < max_length:
        if pool and min(score for score, _ in pool) > normalised(live[0][0], max_length, options):
            break
        time += 1
        candidates = [
            (total + value, (*prefix, token))
            for total, prefix in live
            for token, value in enumerate(following(prefix))
            if not (options.forbid_empty and time == 1 and token == EOS)
        ]
        best = sorted(candidates, key=lambda candidate: -candidate[0])[: 2 * options.beam]
        live = [candidate for candidate in best if candidate[1][-1] != EOS][: options.beam]
        ended = [(normalised(total, time, options), tokens) for total, tokens in best if tokens[-1] == EOS]
        pool = sorted(pool + ended, key=lambda candidate: -candidate[0])[: options.beam]
    tokens = pool[0][1] if pool else live[0][1]
    return [token for token in tokens if token != EOS], time


@pytest.mark.parametrize("setting", [("length", 0.0, False), ("gnmt", 0.6, False), ("gnmt", 1.5, True)], ids=str)
@pytest.mark.parametrize("beam", [1, 2, 3, 5, 12])
def test_equals_the_literal_search(beam: int, setting: tuple[str, float, bool]) -> None:
    options = SearchOptions(beam, *setting)
    max_lengths = [8, 3, 8, 1, 6, 7]
    results = []
    for seed in range(20):
        model = Model(seed, 7)
        expected = [
            literal(model.log_probabilities(sentence), length, options) for sentence, length in enumerate(max_lengths)
        ]
        results.append(model.search(list(range(6)), max_lengths, options))
        assert results[-1] == expected, seed
    lengths = {len(tokens) for translations in results for tokens in translations}
    assert len(lengths) > 4  # the test covers translations of many lengths


def test_the_toolkits_rule_equals_the_literal_search_on_many_models() -> None:
    """Translations and numbers of steps are equal, and the test covers all cases of the rule."""
    max_lengths, lengths = [9, 1, 5, 20], set()
    stops = at_limit = others = 0
    for seed in range(40):
        model = Model(seed, 14)
        model.table[:, EOS] += seed % 5 - 1
        options = SearchOptions(1 + seed % 6, "gnmt", (0.6, 1.5, 0.0)[seed % 3], seed % 2 == 0, "toolkit")
        expected = []
        for sentence, max_length in enumerate(max_lengths):
            following = model.log_probabilities(sentence)
            translation, steps = literal_toolkit(following, max_length, options)
            model.rows.clear()
            assert model.search([sentence], [max_length], options) == [translation], seed
            assert len(model.rows) == steps, seed
            stops, at_limit = stops + (steps < max_length), at_limit + (len(translation) == max_length)
            others += literal(following, max_length, options) != translation
            expected.append(translation)
        assert model.search([0, 1, 2, 3], max_lengths, options) == expected, seed
        lengths |= set(map(len, expected))
    assert min(stops, at_limit, others) > 12
    assert len(lengths) > 10


def test_ties_are_broken_alike_alone_and_in_a_batch() -> None:
    model, options = Model(0, 40), SearchOptions(4, "length", 0, False)
    model.table.zero_()
    model.table[:, EOS] = -torch.inf
    together = model.search([0, 1], [3, 2], options)
    assert [len(tokens) for tokens in together] == [3, 2]
    assert together == [*model.search([0], [3], options), *model.search([1], [2], options)]


@pytest.mark.parametrize("search", RULES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_end_the_search_of_their_sentence_only(bad: float, search: str | None) -> None:
    model, options = Model(1, 7), SearchOptions(3, "length", 0, False, search)
    expected = model.search([0, 1, 2], [8, 8, 8], options)

    def step(tokens: Tensor, state: Hashed) -> tuple[Tensor, Hashed]:
        logits, state = model.step(tokens, state)
        return logits.masked_fill(state.sentences[:, None] == 1, bad), state

    state = Hashed(torch.arange(3), torch.zeros(3, dtype=torch.long))
    translations = beam_search(step, state, torch.tensor([8, 8, 8]), FIRST, options, EOS)
    assert translations == [expected[0], [], expected[2]]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_hypothesis_survives_others_whose_logits_are_not_finite(bad: float) -> None:
    model = Model(0, 5)
    model.table[:, EOS] = 20

    def step(tokens: Tensor, state: Hashed) -> tuple[Tensor, Hashed]:
        logits, state = model.step(tokens, state)
        if len(model.rows) > 1:
            # Step 2 continues only the first hypothesis. One continuation ends; step 3 removes the others.
            logits[1:] = bad
        return logits, state

    state = Hashed(torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
    translations = beam_search(step, state, torch.tensor([9]), FIRST, SearchOptions(3, "length", 0, True), EOS)
    assert translations == [[int(model.log_probabilities(0)(())[1:].argmax()) + 1]]
    assert len(model.rows) == 3
