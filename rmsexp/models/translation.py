"""What the translation models read, and what they carry from one target token to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

FIRST = -1  # the token before the first: its embedding is the zero vector


class Batch(NamedTuple):
    """Sentence pairs. Tokens and masks are ``(batch, time)``; each sentence ends in EOS, its last real token.

    ``real``: where the real target tokens lie in the flattened target, ``(tokens,)``.
    """

    source: Tensor
    source_mask: Tensor
    target: Tensor
    target_mask: Tensor
    real: Tensor


@dataclass(frozen=True)
class DecoderState:
    """The state of some hypotheses, one a row of every tensor.

    ``memory``: what belongs to the sentence that is translated; ``history``: what the hypothesis has become; ``step``:
    the number of tokens read so far.
    """

    memory: tuple[Tensor, ...]
    history: tuple[Tensor, ...]
    step: int = 0

    def select(self, rows: Tensor, *, memory: bool) -> DecoderState:
        """The state of ``rows``, in this order.

        Without ``memory`` each row stays with its sentence, and what belongs to the sentence is not copied.
        """
        kept = tuple(part[rows] for part in self.memory) if memory else self.memory
        return DecoderState(kept, tuple(part[rows] for part in self.history), self.step)
