"""LayerNorm Scaling (Sun et al. 2025, arXiv 2502.05795): y = RMSNorm(x) / sqrt(l) in block l = 1, 2, …

Deep blocks then add less to the residual sum, whose variance otherwise grows with depth. Outside of blocks: RMSNorm.
"""

from dataclasses import dataclass

from torch import Tensor

from rmsexp.norms import Norm, RMSNorm, Site


class Scaled(RMSNorm):
    factor = 1.0

    def forward(self, x: Tensor, mask: Tensor | None = None, steps: int | range | None = None) -> Tensor:
        return super().forward(x, mask, steps) * self.factor


@dataclass(frozen=True, kw_only=True)
class LNScaling(Norm):
    eps: float = 1e-6

    def normaliser(self, site: Site) -> Scaled:
        layer = Scaled(site.features, self.eps, bias=bool(site.shift), axes=(1, 2, 3) if site.feature_maps else None)
        if site.depth is not None:
            layer.factor = (site.depth + 1) ** -0.5
        return layer
