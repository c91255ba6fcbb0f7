"""No norm, weight normalisation and mean-only batch normalisation (Salimans & Kingma 2016)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rmsexp import checks
from rmsexp.norms.base import IMPLS, Norm, Site
from rmsexp.norms.batch import BatchNormOptions, MeanOnlyBatchNorm


class Gain(nn.Module):
    """``g_i * w_i`` for the weight ``w_i`` of unit i: a scale of the summed inputs, moved into the weight."""

    def __init__(self, features: int, *, trainable: bool = True) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(features), requires_grad=trainable)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.gain.view(-1, *[1] * (weight.dim() - 1))


class WeightNorm(Gain):
    """``w_i = g_i * v_i / sqrt(||v_i||^2 + eps)``, the norm over everything that enters unit i."""

    def __init__(self, features: int, eps: float = 0.0) -> None:
        super().__init__(features)
        self.eps = eps

    def forward(self, weight: Tensor) -> Tensor:
        squares = weight.square().flatten(1).sum(1)
        return weight * (self.gain * torch.rsqrt(squares + self.eps)).view(-1, *[1] * (weight.dim() - 1))


@dataclass(frozen=True, kw_only=True)
class NoNorm(Norm):
    """No norm. Where a recipe initialises from data, a fixed scale a unit takes up the initial standard deviation."""

    impls = IMPLS

    def reparametrisation(self, site: Site) -> Gain | None:
        return Gain(site.features, trainable=False) if site.data_init else None


@dataclass(frozen=True, kw_only=True)
class WN(Norm):
    """Options of weight normalisation."""

    eps: float = 0.0

    impls = IMPLS

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("norm.eps", self.eps, 0)

    def reparametrisation(self, site: Site) -> WeightNorm:
        return WeightNorm(site.features, self.eps)


@dataclass(frozen=True, kw_only=True)
class MeanOnlyBN(BatchNormOptions):
    """Options of mean-only batch normalisation: weight normalisation, and centring over the batch."""

    def normaliser(self, site: Site) -> MeanOnlyBatchNorm:
        return MeanOnlyBatchNorm(site.features, shift=site.shift is not False, maps=site.maps, options=self)

    def reparametrisation(self, site: Site) -> WeightNorm:
        return WeightNorm(site.features)
