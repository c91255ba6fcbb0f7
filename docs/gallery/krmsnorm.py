"""kRMSNorm (ReaLLM-Forge, norm_variations.py): RMSNorm whose mean is over k of the n units: pRMSNorm with a choice.

The k units are the first, the last, or chosen at random once: the same ones in all layers of one width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rmsexp.norms import Norm, RMSNorm, Site
from rmsexp.system import checks


class PartialRMSNorm(RMSNorm):
    chosen: Tensor

    def standardise(self, x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
        values = x.flatten(-len(axes)).index_select(-1, self.chosen)
        statistic = values.square().mean(-1).view(*x.shape[: -len(axes)], *[1] * len(axes))
        return x, torch.rsqrt(statistic + eps)


@dataclass(frozen=True, kw_only=True)
class KRMSNorm(Norm):
    eps: float = 1e-6
    k: int = 16
    units: str = "random"  # or first, or last

    def normaliser(self, site: Site) -> PartialRMSNorm:
        checks.choice("norm.units", self.units, ("first", "last", "random"))
        if site.feature_maps:
            raise ValueError("kRMSNorm is defined for vectors, and this task has feature maps")
        layer, n = PartialRMSNorm(site.features, self.eps, bias=bool(site.shift)), site.features
        order = (
            torch.randperm(n, generator=torch.Generator().manual_seed(n)) if self.units == "random" else torch.arange(n)
        )
        layer.register_buffer("chosen", order[-self.k :] if self.units == "last" else order[: self.k], persistent=False)
        return layer
