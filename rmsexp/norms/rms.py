"""RMSNorm, pRMSNorm and the L2 norm (Zhang & Sennrich 2019, section 4 and Table 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rmsexp import checks, kernels
from rmsexp.norms.base import Site
from rmsexp.norms.per_example import PerExampleNorm, PerExampleNormOptions, first

ROUNDING = ("ceil", "floor")


class RMSNorm(PerExampleNorm):
    """``y = x / sqrt(mean(x^2) + eps) * weight (+ bias)``, a drop-in for ``torch.nn.RMSNorm``.

    Args:
        normalized_shape: the trailing axes of the input that share one statistic.
        eps: added to the mean of the squares; None takes the machine epsilon of the dtype computed in, as torch does.
        elementwise_affine: whether there is a gain, ``weight``.
        bias: whether there is a shift, ``bias``.
        p: the share of units, first in memory order of the normalised axes, that enter the mean (pRMSNorm, section 4).
        eps_inside: False gives the form of the authors' PyTorch class, ``x / (rms + eps)``.
        k_rounding: how ``p * n`` becomes a number of units (at least 1): "ceil" (paper) or "floor" (its code).
        impl: "eager", elementary tensor operations, or "fused", one kernel.
        axes: statistics over these axes of maps instead, and one gain a channel (see :class:`PerExampleNorm`).

    Raises: ValueError for options that cannot work and for input of another shape.
    """

    kind = kernels.Kind.RMS

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = False,
        *,
        p: float = 1.0,
        eps_inside: bool = True,
        k_rounding: str = "ceil",
        impl: str = "eager",
        axes: Sequence[int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        checks.fraction("p", p)
        checks.choice("k_rounding", k_rounding, ROUNDING)
        super().__init__(
            normalized_shape, eps, gain=elementwise_affine, shift=bias, impl=impl, axes=axes, device=device, dtype=dtype
        )
        self.p, self.eps_inside, self.k_rounding = p, eps_inside, k_rounding

    def k(self, n: int) -> int:
        """How many of ``n`` units enter the statistic."""
        if self.p == 1:
            return n
        exact = n * self.p
        nearest = round(exact)  # 0.29 * 100 is 28.999999999999996
        if not math.isclose(exact, nearest, rel_tol=1e-9):
            nearest = math.ceil(exact) if self.k_rounding == "ceil" else math.floor(exact)
        return max(1, nearest)

    def form(self, n: int) -> kernels.Form:
        return kernels.Form(self.kind, self.k(n), self.eps_inside, self.eps or 0.0)

    def divisor(self, k: int) -> int:
        """What the sum of ``k`` squares is divided by."""
        return k

    def standardise(self, x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
        k = self.k(self.units(x))
        lead = x.dim() - len(axes)
        parts = [part.square().sum(tuple(range(lead, part.dim()))) for part in first(x, len(axes), k)]
        total = parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
        statistic = (total / self.divisor(k)).reshape(*x.shape[:lead], *[1] * len(axes))
        if self.eps_inside:
            return x, torch.rsqrt(statistic + eps)
        # At x = 0 the root has no gradient; the formula's 0/0 is taken as 0 (norms.md, section 6).
        zero = statistic == 0
        root = statistic.masked_fill(zero, 1.0).sqrt().masked_fill(zero, 0.0)
        return x, 1.0 / (root + eps)

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", p={self.p}" if self.p < 1 else "")


class L2Norm(RMSNorm):
    """The Euclidean norm in place of the RMS (the paper's Table 2): ``y = x / sqrt(sum(x^2) + eps) * weight``."""

    kind = kernels.Kind.EUCLID

    def divisor(self, k: int) -> int:  # noqa: ARG002
        return 1


@dataclass(frozen=True, kw_only=True)
class RMS(PerExampleNormOptions):
    """Options of RMSNorm. ``bias``: whether a shift follows the gain; None: where the recipe has one."""

    eps_inside: bool = True
    bias: bool | None = None

    def normaliser(self, site: Site) -> RMSNorm:
        return self._layer(site, RMSNorm)

    def _layer(self, site: Site, layer: type[RMSNorm], p: float = 1.0, k_rounding: str = "ceil") -> RMSNorm:
        return layer(
            site.features,
            self.eps,
            bias=bool(site.shift) if self.bias is None else self.bias,
            p=p,
            eps_inside=self.eps_inside,
            k_rounding=k_rounding,
            impl=self.impl,
            axes=self.axes_of(site),
        )


@dataclass(frozen=True, kw_only=True)
class PRMS(RMS):
    """Options of pRMSNorm: the first ``p`` of the units enter the statistic."""

    p: float = 0.0625
    k_rounding: str = "ceil"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fraction("norm.p", self.p)
        checks.choice("norm.k_rounding", self.k_rounding, ROUNDING)

    def normaliser(self, site: Site) -> RMSNorm:
        return self._layer(site, RMSNorm, self.p, self.k_rounding)


@dataclass(frozen=True, kw_only=True)
class L2(RMS):
    """Options of the L2 norm."""

    def normaliser(self, site: Site) -> RMSNorm:
        return self._layer(site, L2Norm)
