"""Whole models and runs with fused norms and recurrences equal those with eager ones."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.fused_pairs import NORMS, PROPERTY, Pair, close, gradients, pair
from helpers.sites import draw
from helpers.tasks import task_and_model
from helpers.translation_models import RAGGED, SOURCES, TARGETS, assert_steps_are_forward, batch_of, pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from rmsexp import config
from rmsexp.models.rnnsearch import RNNSearch
from rmsexp.models.translation import DecoderState
from rmsexp.train.randomness import StreamNoise

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]

SENTENCES = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=4)


def rnnsearch_pair(name: str, dtype: torch.dtype = torch.float64, embedding: int = 5, hidden: int = 9) -> Pair:
    return pair(lambda norm: RNNSearch(norm, SOURCES, TARGETS, embedding=embedding, hidden=hidden), name, dtype)


def assert_models_agree(models: Pair, lengths: Sequence[tuple[int, int]]) -> None:
    batch, results = batch_of(pairs(lengths)), []
    for model in models:
        logits = model(batch)
        results.append([logits, *gradients(logits, list(model.parameters()))])
    close(results[1], results[0])


@pytest.mark.parametrize("name", ["ln", "prms"])
def test_rnnsearch_in_float32(name: str) -> None:
    assert_models_agree(rnnsearch_pair(name, torch.float32), RAGGED)


@pytest.mark.parametrize("name", ["none", "ln"])
def test_rnnsearch_as_in_theano(name: str) -> None:
    """With an output matrix of its own, and a bias of the score, which the fused decoder leaves out.

    Without this bias, its gradient is zero up to rounding.
    """
    sizes: dict[str, Any] = {"embedding": 5, "hidden": 9, "tied": False, "score_bias": True}
    assert_models_agree(pair(lambda norm: RNNSearch(norm, SOURCES, TARGETS, **sizes), name), RAGGED)


@settings(PROPERTY, max_examples=25)
@given(st.sampled_from(list(NORMS)), SENTENCES, st.integers(1, 6), st.integers(1, 12))
def test_rnnsearch_of_any_lengths_and_sizes(
    name: str, lengths: list[tuple[int, int]], embedding: int, hidden: int
) -> None:
    assert_models_agree(rnnsearch_pair(name, embedding=embedding, hidden=hidden), lengths)


@pytest.mark.parametrize("name", ["none", "ln", "prms"])
def test_rnnsearch_decodes_step_by_step_as_in_training(name: str) -> None:
    _, fused = rnnsearch_pair(name)
    assert_steps_are_forward(fused, batch_of(pairs(RAGGED)))


def test_rnnsearch_with_a_constant_source_side() -> None:
    """Gradients agree if only the decoder is trained, so that keys and annotations need none."""
    batch, results = batch_of(pairs(RAGGED)), []
    for model in rnnsearch_pair("rms"):
        for part in (model.forward_gru, model.backward_gru, model.keys, model.initial):
            part.requires_grad_(False)
        model.source_embedding.requires_grad_(False)
        logits = model(batch)
        results.append([logits, *gradients(logits, [p for p in model.parameters() if p.requires_grad])])
    close(results[1], results[0])


def test_rnnsearch_does_not_read_the_source_s_padding() -> None:
    """The eager form multiplies the values of padding by attention weights of 0, which gives NaN."""
    _, fused = rnnsearch_pair("rms")
    batch, results = batch_of(pairs(RAGGED)), []
    start, previous = fused.encode(batch.source, batch.source_mask), draw(len(batch.source), 3, 5)
    *parts, mask = start.memory
    for fill in (0.0, float("nan")):
        memory = (*(part.masked_fill(~mask.unsqueeze(-1), fill) for part in parts), mask)
        results.append(fused._decode_fused(previous, DecoderState(memory, start.history), fused._weights()))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("task", config.options("task"))
def test_objectives_agree(task: str, words: list[str]) -> None:
    results = []
    for impl in ("eager", "fused"):
        instance, model = task_and_model(*words, "norm=prms", "norm.p=0.5", f"norm.impl={impl}")
        batch = instance.batches(0)[0]
        if task == "order_embedding":
            batch = batch._replace(features=batch.features.double())
        if task == "cifar10":
            batch = (batch[0].double(), batch[1])
        loss = instance.objective(model.double(), batch, StreamNoise(0, "noise", 0, 0)).loss
        results.append([loss, *gradients(loss, list(model.parameters()))])
    close(results[1], results[0])
