"""SeeDNorm (Cai et al. 2025, arXiv 2510.22777): y = (tanh(x·b) a + g) x / rms(x), with trained vectors a, b and g.

The gain depends on the size of the input, which RMSNorm forgets. b starts at 0, a and g at 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rmsexp.norms import Norm, RMSNorm, Site


class SelfRescaled(RMSNorm):
    def __init__(self, features: int, eps: float | None) -> None:
        super().__init__(features, eps)
        self.a = nn.Parameter(torch.ones(features))
        self.b = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor, mask: Tensor | None = None, steps: int | range | None = None) -> Tensor:
        self.check_input(x)
        rescaled = torch.tanh((x * self.b).sum(-1, keepdim=True)) * self.a + self.weight
        return rescaled * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


@dataclass(frozen=True, kw_only=True)
class SeeDNorm(Norm):
    eps: float = 1e-6

    def normaliser(self, site: Site) -> SelfRescaled:
        if site.feature_maps:
            raise ValueError("SeeDNorm is defined for vectors, and this task has feature maps")
        return SelfRescaled(site.features, self.eps)
