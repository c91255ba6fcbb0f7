"""What holds for both translation models with every norm: padding, batches, steps of decoding, and their states."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import translation_models
from helpers.sites import KINDS, NORMS, close, fill
from helpers.translation_models import ALONE, EVEN, RAGGED, SOURCES, TARGETS, batch_of, pairs, read_on, shifted

from rmsexp import norms
from rmsexp.models.rnnsearch import RNNSearch
from rmsexp.models.transformer import Sizes, Transformer

Make = Callable[[norms.Norm], Any]


def transformer(norm: norms.Norm, pre_norm: bool = False) -> Transformer:
    sizes = Sizes(8, 2, 2, 12, pre_norm, dropout=0.0, attention_dropout=0.0, relu_dropout=0.0)
    return Transformer(norm, SOURCES, TARGETS, sizes)


MODELS: dict[str, Make] = {
    "rnnsearch": lambda norm: RNNSearch(norm, SOURCES, TARGETS, embedding=3, hidden=4),
    "transformer": transformer,
    "pre-norm transformer": lambda norm: transformer(norm, pre_norm=True),
}
EACH = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def with_statistics(make: Make, name: str) -> Any:
    """Return a model after three batches in training, so that batch norms have statistics for each time step."""
    model = fill(make(NORMS[name])).train()
    with torch.no_grad():
        for index in range(3):
            model(batch_of(pairs(RAGGED, str(index))))
    return model


@EACH
@pytest.mark.parametrize(("name", "mode"), ALONE)
def test_a_sentence_does_not_depend_on_its_neighbours(name: str, mode: str, make: Make) -> None:
    """It has the same logits alone, without padding, as in a batch."""
    model, examples = with_statistics(make, name).train(mode == "train"), pairs(RAGGED)
    batch = batch_of(examples)
    for pair, together in zip(examples, model(batch).split(batch.target_mask.sum(1).tolist()), strict=True):
        close(model(batch_of([pair])), together)


@EACH
@KINDS
def test_tokens_on_padding_change_nothing_in_training(name: str, make: Make) -> None:
    model, results = fill(make(NORMS[name])), []
    for padding in (0, 5):
        copied = copy.deepcopy(model).train()
        logits = copied(batch_of(pairs(RAGGED), padding))
        logits.square().sum().backward()
        results.append((logits, copied.state_dict(), [parameter.grad for parameter in copied.parameters()]))
    for first, second in zip(*results, strict=True):
        close(first, second)


@EACH
@KINDS
def test_steps_of_the_decoder_are_the_forward_pass(name: str, make: Make) -> None:
    translation_models.assert_steps_are_forward(with_statistics(make, name).eval(), batch_of(pairs(RAGGED)))


@EACH
@KINDS
def test_selected_rows_continue_their_hypotheses(name: str, make: Make) -> None:
    """Decoding from selected rows of a state goes on as in those rows, with both values of ``memory``."""
    model = with_statistics(make, name).eval()
    batch = batch_of(pairs(EVEN))
    read = shifted(batch.target)
    whole, _ = read_on(model, model.encode(batch.source, batch.source_mask), read)
    _, state = read_on(model, model.encode(batch.source, batch.source_mask), read[:, :3])
    rows = torch.tensor([5, 2, 2, 0])
    close(read_on(model, state.select(rows, memory=True), read[rows, 3:])[0], whole[rows, 3:])

    repeated = batch_of(pairs(EVEN)[:1] * 8)  # eight hypotheses of one sentence
    start = model.encode(repeated.source, repeated.source_mask)
    rows = torch.tensor([5, 2, 2, 0, 7, 1, 3, 3])
    expected, _ = read_on(model, start, read[rows])
    _, state = read_on(model, start, read[:, :3])
    selected = state.select(rows, memory=False)
    assert selected.memory is state.memory
    close(read_on(model, selected, read[rows, 3:])[0], expected[:, 3:])
