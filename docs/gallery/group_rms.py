"""Group RMSNorm (flash-linear-attention, GroupNorm with is_rms_norm): one RMS for each group of neighbouring units.

Groups stand for heads, whose sizes then do not depend on each other.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rmsexp.norms import Norm, RMSNorm, Site


class GroupRMSNorm(RMSNorm):
    groups = 1

    def standardise(self, x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
        grouped = x.unflatten(-1, (self.groups, -1))
        scale = torch.rsqrt(grouped.square().mean(-1, keepdim=True) + eps)
        return x, scale.expand_as(grouped).flatten(-2)


@dataclass(frozen=True, kw_only=True)
class GroupRMS(Norm):
    eps: float = 1e-6
    groups: int = 4

    def normaliser(self, site: Site) -> GroupRMSNorm:
        if site.feature_maps:
            raise ValueError("group RMSNorm is defined for vectors, and this task has feature maps")
        if site.features % self.groups:
            raise ValueError(f"{site.name}: {site.features} features cannot be split into norm.groups={self.groups}")
        layer = GroupRMSNorm(site.features, self.eps, bias=bool(site.shift))
        layer.groups = self.groups
        return layer
