"""The cross-entropy of large vocabularies against smoothed targets (Szegedy et al. 2016, section 7)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def token_losses(logits: Tensor, targets: Tensor, smoothing: float, others: float) -> tuple[Tensor, Tensor]:
    """The cross-entropy of each token in nats, ``(tokens,)``, and the same against smoothed targets.

    These have the probability ``1 - smoothing`` for the true token and ``others`` for each other one.
    """
    return _TokenLosses.apply(logits.float(), targets, smoothing, others)


class _TokenLosses(torch.autograd.Function):
    """With log-probabilities l: ``-l_true``; that for the true word and, weighted by ``others``, for every word.

    Written out since autograd would make more tensors of (tokens, vocabulary), about a tenth of a small model's step.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float, others: float) -> tuple[Tensor, Tensor]:
        log_probabilities = logits.log_softmax(1)
        ctx.save_for_backward(log_probabilities, targets)
        ctx.true, ctx.others = 1 - smoothing - others, others
        plain = -log_probabilities.gather(1, targets.unsqueeze(1)).squeeze(1)
        return plain, ctx.true * plain - others * log_probabilities.sum(1)

    @staticmethod
    def backward(ctx: Any, of_plain: Tensor, of_smoothed: Tensor) -> tuple[Tensor | None, ...]:
        log_probabilities, targets = ctx.saved_tensors
        of_true = of_plain + ctx.true * of_smoothed
        of_each = ctx.others * of_smoothed
        of_all = of_true + log_probabilities.shape[1] * of_each
        gradient = log_probabilities.exp().mul_(of_all.unsqueeze(1)).sub_(of_each.unsqueeze(1))
        gradient.scatter_add_(1, targets.unsqueeze(1), -of_true.unsqueeze(1))
        return gradient, None, None, None
