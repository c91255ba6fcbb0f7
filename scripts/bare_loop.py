"""A plain PyTorch training loop, the baseline of trainer_overhead.py: no records, checkpoints, clock or evaluation."""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TorchNoise:
    """Draws a model's training noise (:class:`rmsexp.task.Noise`) from torch's global generator."""

    def gaussian(self, x: Tensor, std: float) -> Tensor:
        return x + std * torch.randn_like(x) if std else x

    def dropout(self, x: Tensor, p: float) -> Tensor:
        return F.dropout(x, p) if p else x


def train(model: nn.Module, batch: Callable[[int], tuple[Tensor, Tensor]], lr: float, steps: int, warmup: int) -> float:
    """Train a classifier and return the seconds of ``steps`` steps, which follow ``warmup`` steps.

    ``batch`` returns the images and labels of a step. Each warm-up step takes those of step 0.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr)
    start = 0.0
    for step in range(-warmup, steps):
        if step == 0:
            start = time.perf_counter()
        images, labels = batch(max(step, 0))
        loss = F.cross_entropy(model(images, TorchNoise()), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - start
