"""What translation models share: their input, the state that they keep in decoding, and the cross-entropy.

Source of label smoothing: Szegedy et al. 2016, section 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

FIRST = -1  # the id that stands for the missing token before the first target token; its embedding is the zero vector


class Batch(NamedTuple):
    """Sentence pairs. Tokens, and masks that are true on real ones, are ``(batch, time)``; the last real one is EOS."""

    source: Tensor
    source_mask: Tensor
    target: Tensor
    target_mask: Tensor
    real: Tensor  # (tokens,): indices of the real target tokens in target.flatten()


@dataclass(frozen=True)
class DecoderState:
    """The state of several hypotheses: row i of each tensor belongs to hypothesis i."""

    memory: tuple[Tensor, ...]  # depends on the source sentence alone
    history: tuple[Tensor, ...]  # depends on the hypothesis
    step: int = 0  # number of decoder steps so far

    def select(self, rows: Tensor, *, memory: bool) -> DecoderState:
        """Return a state that consists of the rows with the indices ``rows``, in this order.

        With ``memory=False`` the caller promises that there are as many rows as before and that each keeps its source
        sentence; ``memory`` is then reused without a copy.
        """
        selected = tuple(part[rows] for part in self.memory) if memory else self.memory
        return DecoderState(selected, tuple(part[rows] for part in self.history), self.step)


def token_losses(logits: Tensor, targets: Tensor, smoothing: float, others: float) -> tuple[Tensor, Tensor]:
    """Return two cross-entropies of each token, in nats: with the true token as the target, and with a smoothed target.

    The smoothed target has probability ``1 - smoothing`` for the true token and ``others`` for each other token.
    ``logits``: ``(tokens, vocabulary)``. ``targets``: true token ids, ``(tokens,)``. Results: ``(tokens,)``, float32.
    """
    return _TokenLosses.apply(logits.float(), targets, smoothing, others)


class _TokenLosses(torch.autograd.Function):
    """Compute ``-l_true`` and ``-(1 - smoothing - others) l_true - others sum(l)`` for log-probabilities l.

    The backward pass is explicit because autograd's would allocate more tensors of shape (tokens, vocabulary). That
    would take about a tenth of the time of a small model's training step.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float, others: float) -> tuple[Tensor, Tensor]:
        log_probabilities = logits.log_softmax(1)
        ctx.save_for_backward(log_probabilities, targets)
        ctx.true, ctx.others = 1 - smoothing - others, others
        plain = -log_probabilities.gather(1, targets.unsqueeze(1)).squeeze(1)
        return plain, ctx.true * plain - others * log_probabilities.sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_plain: Tensor, grad_smoothed: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the loss L: ``dL/dlogit_v = dL/dl_v - softmax_v * sum(dL/dl)`` for each word v."""
        log_probabilities, targets = ctx.saved_tensors
        # A change dl of a token's log-probabilities changes L by -weight_true * dl_true - weight_all * sum(dl).
        weight_true = grad_plain + ctx.true * grad_smoothed
        weight_all = ctx.others * grad_smoothed
        total = weight_true + log_probabilities.shape[1] * weight_all
        gradient = log_probabilities.exp().mul_(total.unsqueeze(1)).sub_(weight_all.unsqueeze(1))
        gradient.scatter_add_(1, targets.unsqueeze(1), -weight_true.unsqueeze(1))
        return gradient, None, None, None
