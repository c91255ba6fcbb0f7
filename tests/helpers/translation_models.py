"""Helpers for the tests of both translation models: sentence pairs, and assertions that hold for both."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from helpers.cases import some
from helpers.sites import NORMS, TWINS, close
from rmsexp import norms
from rmsexp.models.translation import FIRST, Batch, DecoderState
from rmsexp.train.randomness import stream

SOURCES, TARGETS = 9, 7  # sizes of the vocabularies
# some (norm, mode) for which the result for an example does not depend on the other examples of its batch; in training
# this holds for all norms but the batch norms
ALONE = [
    *some([(name, "eval") for name in NORMS], [(name, "eval") for name in NORMS.keys() - TWINS]),
    *((name, "train") for name in ("none", "ln", "wn")),
]
Pair = tuple[Tensor, Tensor]
# (length of the source, length of the target) of each sentence pair
RAGGED = ((3, 4), (5, 2), (1, 1), (4, 4), (2, 5), (5, 3), (3, 1), (4, 5))
EVEN = ((4, 5),) * 8


@dataclass(frozen=True, kw_only=True)
class SiteList(norms.LN):
    """LN that lists the names of a model's sites: in ``normalised`` those with LN, in ``maps`` all linear layers."""

    normalised: list[str] = field(default_factory=list)
    maps: list[str] = field(default_factory=list)

    def normaliser(self, site: norms.Site) -> norms.LayerNorm:
        self.normalised.append(site.name)
        return super().normaliser(site)

    def reparametrisation(self, site: norms.Site) -> None:
        self.maps.append(site.name)

    @property
    def unnormalised(self) -> list[str]:
        return [name for name in self.maps if name not in self.normalised]


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def pairs(lengths: Sequence[tuple[int, int]], *name: str) -> list[Pair]:
    """Return random sentence pairs, as token ids, with these lengths of source and target.

    ``name``: the name of the random stream.
    """
    generator = stream(0, "pairs", *name)

    def tokens(size: int, length: int) -> Tensor:
        return torch.randint(size, (length,), generator=generator)

    return [(tokens(SOURCES, source), tokens(TARGETS, target)) for source, target in lengths]


def padded(sentences: Sequence[Tensor], padding: int = 0) -> tuple[Tensor, Tensor]:
    """Return token ids, padded with ``padding``, and their mask, ``(sentences, time)`` each."""
    joined = nn.utils.rnn.pad_sequence(list(sentences), batch_first=True, padding_value=padding)
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    return joined, torch.arange(joined.shape[1]) < lengths.unsqueeze(1)


def batch_of(examples: Sequence[Pair], padding: int = 0) -> Batch:
    """Return the pairs as one padded batch; ``padding`` is the token id at padded positions."""
    source, source_mask = padded([source for source, _ in examples], padding)
    target, target_mask = padded([target for _, target in examples], padding)
    return Batch(source, source_mask, target, target_mask, target_mask.flatten().nonzero().squeeze(1))


def read_on(model: Any, state: DecoderState, tokens: Tensor) -> tuple[Tensor, DecoderState]:
    """Feed ``tokens``, ``(batch, time)``, step by step; return logits ``(batch, time, target_size)`` and the state."""
    rows = []
    for column in tokens.unbind(1):
        logits, state = model.step(column, state)
        rows.append(logits)
    return torch.stack(rows, 1), state


def shifted(target: Tensor) -> Tensor:
    """Return the tokens that the decoder reads when it predicts ``target``: ``FIRST``, then all but the last."""
    return torch.cat([torch.full_like(target[:, :1], FIRST), target[:, :-1]], 1)


def assert_steps_are_forward(model: Any, batch: Batch) -> None:
    """Check that decoding step by step gives the logits of the forward pass."""
    logits, _ = read_on(model, model.encode(batch.source, batch.source_mask), shifted(batch.target))
    close(logits.flatten(0, 1)[batch.real], model(batch))
