"""Input of the translation models, and their state between target tokens in decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

FIRST = -1  # stands for the token before the first target token; its embedding is the zero vector


class Batch(NamedTuple):
    """Sentence pairs. Tokens and masks are ``(batch, time)``; the last real token of each sentence is EOS.

    ``real``: indices of the real target tokens in the flattened target, ``(tokens,)``.
    """

    source: Tensor
    source_mask: Tensor
    target: Tensor
    target_mask: Tensor
    real: Tensor


@dataclass(frozen=True)
class DecoderState:
    """The state of several hypotheses; each row of each tensor belongs to one of them.

    ``memory``: tensors that depend on the source sentence alone. ``history``: tensors that depend on the hypothesis.
    ``step``: number of target tokens read.
    """

    memory: tuple[Tensor, ...]
    history: tuple[Tensor, ...]
    step: int = 0

    def select(self, rows: Tensor, *, memory: bool) -> DecoderState:
        """Return the state of ``rows``, in this order.

        ``memory=False`` is for rows that all keep their source sentence: ``memory`` is then not copied.
        """
        selected = tuple(part[rows] for part in self.memory) if memory else self.memory
        return DecoderState(selected, tuple(part[rows] for part in self.history), self.step)
