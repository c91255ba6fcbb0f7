"""LayerNorm (Ba et al. 2016) and its form without parameters (OLMo)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rmsexp import kernels
from rmsexp.norms.base import Site
from rmsexp.norms.per_example import PerExampleNorm, PerExampleNormOptions


class LayerNorm(PerExampleNorm):
    """``y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias``, the variance biased.

    Arguments are those of ``torch.nn.LayerNorm``, which is always one fused kernel; this one, like every norm here, is
    composed of elementary tensor operations, unless ``impl="fused"``.
    """

    kind = kernels.Kind.LAYER

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        impl: str = "eager",
        axes: Sequence[int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shift = elementwise_affine and bias
        super().__init__(
            normalized_shape,
            eps,
            gain=elementwise_affine,
            shift=shift,
            impl=impl,
            axes=axes,
            device=device,
            dtype=dtype,
        )

    def standardise(self, x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
        centred = x - x.mean(axes, keepdim=True)
        return centred, torch.rsqrt(centred.square().mean(axes, keepdim=True) + eps)


@dataclass(frozen=True, kw_only=True)
class LN(PerExampleNormOptions):
    """Options of LayerNorm."""

    def normaliser(self, site: Site) -> LayerNorm:
        shift = site.shift is not False
        return LayerNorm(site.features, self.eps, bias=shift, impl=self.impl, axes=self.axes_of(site))


@dataclass(frozen=True, kw_only=True)
class NonparametricLN(PerExampleNormOptions):
    """Options of LayerNorm with neither gain nor bias."""

    def normaliser(self, site: Site) -> LayerNorm:
        return LayerNorm(site.features, self.eps, elementwise_affine=False, impl=self.impl, axes=self.axes_of(site))
