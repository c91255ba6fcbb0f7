"""Training steps of one's own, in a module that measuring processes can import."""

from collections.abc import Callable
from functools import cache

import torch
from torch import nn

from rmsexp.norms import convert


def make_step(norm: str | None = None, features: int = 8) -> Callable[[], None]:
    """Return a training step of a small model with LayerNorm, or with another norm in its place."""
    model = nn.Sequential(nn.Linear(features, features), nn.LayerNorm(features))
    if norm is not None:
        convert.convert(model, norm)
    x, optimiser = torch.randn(4, features), torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(x).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 1))


same_model = cache(make_model)
MODEL = make_model()


def make_batch(step: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(step))


def mean_square(output: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return (output[:, 0] - batch.sum(dim=1)).square().mean()
