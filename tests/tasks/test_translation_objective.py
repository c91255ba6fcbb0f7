"""The objectives of the translation tasks against plain formulas, which are computed token by token."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.sites import close, draw
from helpers.translation_models import RAGGED, TARGETS, batch_of, by_sentence, pairs
from torch import Tensor
from torch.nn import functional as F

from rmsexp.models.translation import Batch, token_losses
from rmsexp.task import Objective
from rmsexp.tasks import rnnsearch, transformer
from rmsexp.tasks.translation import real_targets
from rmsexp.train.randomness import StreamNoise

TASKS: dict[str, Any] = {"rnnsearch": rnnsearch.Task, "transformer": transformer.Task}
BOTH = pytest.mark.parametrize("task", TASKS)
SMOOTHINGS = pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])


def objective(task: str, logits: Tensor, batch: Batch, smoothing: float) -> Objective:
    """Return the objective of a model whose output is ``logits``."""
    noise = StreamNoise(0, "noise")

    def model(model_batch: Batch, model_noise: StreamNoise) -> Tensor:
        assert model_batch is batch
        assert model_noise is noise
        return logits

    stub = SimpleNamespace(config=SimpleNamespace(label_smoothing=smoothing))
    return TASKS[task].objective(stub, model, batch, noise)


def example(lengths: tuple[tuple[int, int], ...] = RAGGED) -> tuple[Batch, Tensor]:
    """Return a batch, and random logits in float32, the dtype in which losses are computed."""
    batch = batch_of(pairs(lengths), padding=3)
    return batch, 2 * draw(len(batch.real), TARGETS, seed=1).float()


def cross_entropy(scores: list[float], target: int, true: float, other: float) -> float:
    """Return a token's cross-entropy for target probabilities ``true`` (the token) and ``other`` (each other word)."""
    log_total = math.log(sum(math.exp(score) for score in scores))
    return -sum((true if word == target else other) * (score - log_total) for word, score in enumerate(scores))


def sentences(batch: Batch, logits: Tensor) -> list[list[tuple[list[float], int]]]:
    """Return a list per sentence with a pair per token: its logits and its target."""
    targets = [row[mask].tolist() for row, mask in zip(batch.target, batch.target_mask, strict=True)]
    scores = [part.tolist() for part in by_sentence(logits, batch)]
    return [list(zip(*both, strict=True)) for both in zip(scores, targets, strict=True)]


def nematus(batch: Batch, logits: Tensor, e: float) -> float:
    """Return the objective of Nematus: the cross-entropy, summed over tokens and averaged over sentences.

    Target probabilities are 1 - e + e / V for the true word and e / V for each other word.
    """
    true, other = 1 - e + e / TARGETS, e / TARGETS
    tokens = [token for sentence in sentences(batch, logits) for token in sentence]
    return sum(cross_entropy(*token, true, other) for token in tokens) / len(batch.target)


def zero(batch: Batch, logits: Tensor, e: float) -> float:
    """Return the objective of the toolkit zero: the cross-entropy, averaged over tokens and then over sentences.

    Target probabilities are 1 - e for the true word and e / (V - 1) for each other word; their entropy is subtracted.
    """
    true, other = 1 - e, e / (TARGETS - 1)
    entropy = -sum(p * math.log(p) for p in [true, *[other] * (TARGETS - 1)] if p)
    means = [
        sum(cross_entropy(*token, true, other) - entropy for token in sentence) / len(sentence)
        for sentence in sentences(batch, logits)
    ]
    return sum(means) / len(means)


FORMULAS: dict[str, Callable[[Batch, Tensor, float], float]] = {"rnnsearch": nematus, "transformer": zero}


@BOTH
@SMOOTHINGS
def test_the_objective_is_the_formula(task: str, smoothing: float) -> None:
    batch, logits = example()
    computed = objective(task, logits, batch, smoothing)
    assert computed.loss.item() == pytest.approx(FORMULAS[task](batch, logits, smoothing), rel=1e-5)


@BOTH
@SMOOTHINGS
def test_the_loss_is_the_plain_cross_entropy_per_token(task: str, smoothing: float) -> None:
    batch, logits = example()
    computed = objective(task, logits, batch, smoothing)
    assert computed.count == batch.target_mask.sum() == sum(target for _, target in RAGGED)
    assert computed.sums.keys() == {"loss"}
    mean = computed.sums["loss"] / computed.count
    torch.testing.assert_close(mean, F.cross_entropy(logits, batch.target[batch.target_mask]))


@pytest.mark.parametrize("smoothing", [0.1, 0.3])
def test_the_smoothed_target_itself_is_the_best_prediction(smoothing: float) -> None:
    """If the predictions are the smoothed targets, the gradient is 0.

    The objective is then 0 for the Transformer; for RNNSearch it is the entropy of the targets, summed over tokens and
    divided by the number of sentences.
    """
    batch, _ = example()
    hot = F.one_hot(real_targets(batch), TARGETS).double()
    others = {"rnnsearch": smoothing / TARGETS, "transformer": smoothing / (TARGETS - 1)}
    for task, other in others.items():
        probabilities = torch.where(hot == 1, 1 - other * (TARGETS - 1), other)
        logits = probabilities.log().float().requires_grad_()
        loss = objective(task, logits, batch, smoothing).loss
        (gradient,) = torch.autograd.grad(loss, logits)
        assert gradient.abs().max() < 1e-6
        entropy = -(probabilities * probabilities.log()).sum() / len(batch.target)
        assert loss.item() == pytest.approx(0 if task == "transformer" else entropy.item(), abs=2e-6, rel=1e-5)


def test_second_derivatives_of_token_losses_are_refused() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    loss = token_losses(logits, torch.arange(3), 0.1, 0.02)[1].sum()
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.square().sum().backward()


def test_token_losses_are_the_formula() -> None:
    batch, logits = example()
    plain, smoothed = token_losses(logits, real_targets(batch), 0.2, 0.03)
    tokens = [token for sentence in sentences(batch, logits) for token in sentence]
    close(plain.tolist(), [cross_entropy(*token, 1.0, 0.0) for token in tokens], rtol=1e-5, atol=1e-6)
    close(smoothed.tolist(), [cross_entropy(*token, 0.8, 0.03) for token in tokens], rtol=1e-5, atol=1e-6)
    assert torch.equal(token_losses(logits.double(), real_targets(batch), 0.2, 0.03)[1], smoothed)  # in float32
    unsmoothed = token_losses(logits, real_targets(batch), 0.0, 0.0)
    assert torch.equal(unsmoothed[0], plain)
    assert torch.equal(unsmoothed[1], plain)
