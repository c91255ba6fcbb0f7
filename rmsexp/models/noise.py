"""The interface through which a model gets its random noise, so that runs with different norms get the same noise."""

from typing import Protocol

import torch
from torch import Tensor


class Noise(Protocol):
    """A source of random noise for one forward pass. In evaluation a model gets None instead and applies no noise."""

    def gaussian(self, x: Tensor, std: float) -> Tensor:
        """Return ``x`` plus normal noise of mean 0 and standard deviation ``std``."""

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Return ``x`` with each element set to 0 with probability ``p``, and divided by ``1 - p`` otherwise."""

    def seed_default(self, device: torch.device) -> None:
        """Seed torch's default generator on ``device``, which the dropout inside torch's attention draws from."""
