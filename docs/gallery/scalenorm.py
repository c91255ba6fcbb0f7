"""ScaleNorm (Nguyen & Salazar 2019, arXiv 1910.05895): y = g x / ||x||, with a single trained number g.

g starts at the root of the width, as ||x|| is that of a vector whose values have the size 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rmsexp.norms import Norm, Normaliser, Site


class ScaledToLength(Normaliser):
    def __init__(self, features: int, eps: float, maps: bool) -> None:
        super().__init__(features, gain=False, shift=False, maps=maps)
        self.eps, self.length = eps, nn.Parameter(torch.tensor(features**0.5))

    def forward(self, x: Tensor, mask: Tensor | None = None, steps: int | range | None = None) -> Tensor:
        self.check_input(x)
        norm = torch.linalg.vector_norm(x, dim=1 if self.maps else -1, keepdim=True)
        return self.length * x / norm.clamp(min=self.eps)


@dataclass(frozen=True, kw_only=True)
class ScaleNorm(Norm):
    eps: float = 1e-5

    def normaliser(self, site: Site) -> ScaledToLength:
        return ScaledToLength(site.features, self.eps, site.feature_maps)
