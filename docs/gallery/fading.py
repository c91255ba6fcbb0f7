"""A norm that fades out during training (after TaperNorm, 2026, arXiv 2602.10408): y = w N(x) + (1 - w) g x.

N is RMSNorm, with gain g. The weight w falls linearly from 1 to 0 between the steps ``begin`` and ``end``. At the end
the layer is a gain, which can be multiplied into the next matrix.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rmsexp.norms import Norm, RMSNorm, Site


class Fading(RMSNorm):
    def __init__(self, features: int, eps: float | None, begin: int, end: int) -> None:
        super().__init__(features, eps)
        self.begin, self.end = begin, end
        self.register_buffer("share", torch.ones(()), persistent=False)

    def set_step(self, step: int) -> None:
        self.share.fill_(min(1.0, max(0.0, (self.end - step) / (self.end - self.begin))))

    def forward(self, x: Tensor, mask: Tensor | None = None, steps: int | range | None = None) -> Tensor:
        return torch.lerp(x * self.weight, super().forward(x), self.share)


@dataclass(frozen=True, kw_only=True)
class FadingNorm(Norm):
    eps: float = 1e-6
    begin: int = 100
    end: int = 1000

    def normaliser(self, site: Site) -> Fading:
        if site.feature_maps:
            raise ValueError("this example is written for vectors, and this task has feature maps")
        return Fading(site.features, self.eps, self.begin, self.end)
