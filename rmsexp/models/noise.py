"""Where a model's noise comes from: whoever calls it, so that the noise of a step is the same whatever the norm."""

from typing import Protocol

import torch
from torch import Tensor


class Noise(Protocol):
    """The noise of one forward pass. A model that is given none runs without: evaluation."""

    def gaussian(self, x: Tensor, std: float) -> Tensor:
        """``x`` plus normal noise of standard deviation ``std``."""

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """``x`` with a share ``p`` of its elements at zero, and the rest divided by ``1 - p``."""

    def seed_default(self, device: torch.device) -> None:
        """Seeds torch's own generator on ``device``, for an operation that draws inside (attention's dropout)."""
