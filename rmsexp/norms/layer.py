"""LayerNorm (Ba et al. 2016) and non-parametric LayerNorm (Groeneveld et al. 2024, OLMo)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rmsexp.norms import kernels
from rmsexp.norms.base import Site
from rmsexp.norms.per_example import PerExampleNorm, PerExampleNormOptions


class LayerNorm(PerExampleNorm):
    """``y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias``, with the biased variance (Ba et al. 2016, Eq. 3).

    It can replace ``torch.nn.LayerNorm``, which is always one fused kernel; this class is one if ``impl`` is "fused".

    Args:
        normalized_shape: Shape of the last axes of the input, over which mean and variance are taken. With ``axes``,
            the number of channels.
        eps: Added to the variance.
        elementwise_affine: Whether there is a gain, ``weight``.
        bias: Whether there is a shift, ``bias``; no effect without ``elementwise_affine``.

    See :class:`PerExampleNorm` for the other arguments and for errors.
    """

    kind = kernels.Kind.LAYER

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        impl: str = "eager",
        axes: Sequence[int] | None = None,
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
    """Options of LayerNorm. See :class:`PerExampleNormOptions`."""

    def normaliser(self, site: Site) -> LayerNorm:
        shift = site.shift is not False
        return LayerNorm(site.features, self.eps, bias=shift, impl=self.impl, axes=self.axes_of(site))


@dataclass(frozen=True, kw_only=True)
class NonparametricLN(PerExampleNormOptions):
    """Options of LayerNorm without gain and shift. See :class:`PerExampleNormOptions`."""

    def normaliser(self, site: Site) -> LayerNorm:
        return LayerNorm(site.features, self.eps, elementwise_affine=False, impl=self.impl, axes=self.axes_of(site))
