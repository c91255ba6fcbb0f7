"""DyISRU, the dynamic inverse square root unit: y = x / sqrt(x^2 + c^2) * g + b, with a trained number c.

A pointwise function, as DyT's; it follows from RMSNorm's if the statistics of all units but one are held fixed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rmsexp.norms import Norm, Normaliser, Site


class DynamicISRU(Normaliser):
    def __init__(self, features: int, c: float, maps: bool) -> None:
        super().__init__(features, gain=True, shift=True, maps=maps)
        self.c = nn.Parameter(torch.tensor(c))

    def forward(self, x: Tensor, mask: Tensor | None = None, steps: int | range | None = None) -> Tensor:
        y = x * torch.rsqrt(x.square() + self.c.square())
        return y * self.broadcast(self.weight) + self.broadcast(self.bias)


@dataclass(frozen=True, kw_only=True)
class DyISRU(Norm):
    c: float = 1.0

    def normaliser(self, site: Site) -> DynamicISRU:
        return DynamicISRU(site.features, self.c, site.feature_maps)
