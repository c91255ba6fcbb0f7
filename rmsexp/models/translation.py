"""The input of the translation models, and the state that they keep between target tokens in decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

FIRST = -1  # the id that stands for the missing token before the first target token; its embedding is the zero vector


class Batch(NamedTuple):
    """A batch of sentence pairs. Tokens and masks are ``(batch, time)``; the last real token of a sentence is EOS.

    Masks are true on real tokens. ``real``: indices of the real target tokens in ``target.flatten()``, ``(tokens,)``.
    """

    source: Tensor
    source_mask: Tensor
    target: Tensor
    target_mask: Tensor
    real: Tensor


@dataclass(frozen=True)
class DecoderState:
    """The state of several hypotheses: row i of each tensor belongs to hypothesis i.

    ``memory``: tensors that depend on the source sentence alone. ``history``: tensors that depend on the hypothesis.
    ``step``: number of decoder steps so far.
    """

    memory: tuple[Tensor, ...]
    history: tuple[Tensor, ...]
    step: int = 0

    def select(self, rows: Tensor, *, memory: bool) -> DecoderState:
        """Return a state that consists of the rows with the indices ``rows``, in this order.

        With ``memory=False`` the caller promises that there are as many rows as before and that each keeps its source
        sentence. The field ``memory`` is then reused without a copy.
        """
        selected = tuple(part[rows] for part in self.memory) if memory else self.memory
        return DecoderState(selected, tuple(part[rows] for part in self.history), self.step)
