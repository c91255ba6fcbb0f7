"""Cross-entropy of large vocabularies against smoothed targets (Szegedy et al. 2016, section 7)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def token_losses(logits: Tensor, targets: Tensor, smoothing: float, others: float) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of each token in nats against its target, and against the smoothed target.

    A smoothed target has probability ``1 - smoothing`` for the true token and ``others`` for each other token.

    Args:
        logits: ``(tokens, vocabulary)``.
        targets: true token ids, ``(tokens,)``.

    Both results have shape ``(tokens,)`` and are in float32.
    """
    return _TokenLosses.apply(logits.float(), targets, smoothing, others)


class _TokenLosses(torch.autograd.Function):
    """For log-probabilities l: ``-l_true``, and ``-(1 - smoothing - others) l_true - others sum(l)``.

    The backward pass is explicit because autograd would allocate more tensors of shape (tokens, vocabulary), which
    costs about a tenth of a small model's step.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float, others: float) -> tuple[Tensor, Tensor]:
        log_probabilities = logits.log_softmax(1)
        ctx.save_for_backward(log_probabilities, targets)
        ctx.true, ctx.others = 1 - smoothing - others, others
        plain = -log_probabilities.gather(1, targets.unsqueeze(1)).squeeze(1)
        return plain, ctx.true * plain - others * log_probabilities.sum(1)

    @staticmethod
    def backward(ctx: Any, grad_plain: Tensor, grad_smoothed: Tensor) -> tuple[Tensor | None, ...]:
        """``dL/dlogit_v = dL/dl_v - softmax_v * sum(dL/dl)``."""
        log_probabilities, targets = ctx.saved_tensors
        true = grad_plain + ctx.true * grad_smoothed
        each = ctx.others * grad_smoothed
        total = true + log_probabilities.shape[1] * each
        gradient = log_probabilities.exp().mul_(total.unsqueeze(1)).sub_(each.unsqueeze(1))
        gradient.scatter_add_(1, targets.unsqueeze(1), -true.unsqueeze(1))
        return gradient, None, None, None
