"""RMSNorm, pRMSNorm and the L2 norm (Zhang & Sennrich 2019).

Deviation: RNNSearch in Theano, bias of RMSNorm
    original: the instructions keep LayerNorm's bias and call it deletable (rmsnorm:README.md:121-132)
    ours: no bias, as in the TensorFlow code; norm.bias=true adds it
    why: the published classes have no bias by default
    effect: not measured
Deviation: pRMSNorm, number of units in the mean
    original: n p is rounded down (rmsnorm:rmsnorm_torch.py:41); the paper rounds up
    ours: rounded up; norm.k_rounding=floor rounds down, without the rounding of n p as a floating-point number
    why: as in the paper
    effect: none for p = 6.25 %, except one unit for feature maps of 6 x 6 and for the 10 classes of CIFAR-10; one unit
        for most values of p in Figure 3
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import torch
from torch import Tensor

from rmsexp.norms import kernels
from rmsexp.norms.base import Site
from rmsexp.norms.per_example import PerExampleNorm, PerExampleNormOptions
from rmsexp.system import checks

ROUNDING = ("ceil", "floor")


class RMSNorm(PerExampleNorm):
    """``y = x / sqrt(mean(x^2) + eps) * weight (+ bias)``, RMSNorm (Zhang & Sennrich 2019, Eq. 4).

    It can replace ``torch.nn.RMSNorm``: the arguments of that class mean the same here and have the same defaults, such
    as ``eps=None``. In experiments, :class:`RMS` gives ``eps=1e-5``, as for LayerNorm. State dicts of the authors'
    class, with the keys ``scale`` and ``offset``, can be loaded, too.

    With ``p < 1`` it is the paper's pRMSNorm: the mean is over the first ``k = ceil(n * p)`` of the n normalised units,
    in row-major order of the normalised axes.

    Args:
        elementwise_affine, bias: Whether there is a gain, ``weight``, and a shift, ``bias``.
        p: Share of the units that enter the mean, in (0, 1]. It can be set later, too.
        eps_inside: True adds ``eps`` inside the root. False computes ``x / (rms + eps)``, as the authors' PyTorch class
            does.
        k_rounding: How ``n * p`` is rounded to k (at least 1): "ceil", as in the paper, or "floor", as in the authors'
            code.
        weight_offset: Whether the gain is ``1 + weight``, and ``weight`` starts at 0, as in Gemma (Gemma Team 2024).

    See :class:`PerExampleNorm` for the other arguments and for errors.
    """

    kind = kernels.Kind.RMS

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = False,
        p: float = 1.0,
        eps_inside: bool = True,
        k_rounding: str = "ceil",
        weight_offset: bool = False,
        impl: str = "eager",
        axes: Sequence[int] | None = None,
    ) -> None:
        checks.choice("k_rounding", k_rounding, ROUNDING)
        start: dict[str, Any] = {"initial_gain": 0.0 if weight_offset else 1.0, "device": device, "dtype": dtype}
        super().__init__(normalized_shape, eps, gain=elementwise_affine, shift=bias, impl=impl, axes=axes, **start)
        self.gain_offset = float(weight_offset)
        self.p, self.eps_inside, self.k_rounding = p, eps_inside, k_rounding

    @property
    def p(self) -> float:
        """Share of the units that enter the mean. Raises: ValueError when it is set to a value outside (0, 1]."""
        return self._p

    @p.setter
    def p(self, p: float) -> None:
        checks.fraction("p", p)
        self._p = float(p)
        # The nearest fraction with a small denominator: 0.29 is 29 / 100, although the float is slightly less.
        share = Fraction(self._p).limit_denominator(10**9)
        self._numerator, self._denominator = share.numerator, share.denominator

    def k(self, n: int) -> int:
        if self._p == 1:
            return n
        rest = self._denominator - 1 if self.k_rounding == "ceil" else 0
        return min(n, max(1, (n * self._numerator + rest) // self._denominator))

    def divisor(self, k: int) -> int:
        """Return the number by which the sum of ``k`` squares is divided to give the statistic."""
        return k

    def standardise(self, x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
        n = self.units(x)
        k = self.k(n)
        if k == n:
            total = x.square().sum(axes, keepdim=True)
        else:
            first = x.flatten(-len(axes))[..., :k]
            total = first.square().sum(-1).view(*x.shape[: -len(axes)], *[1] * len(axes))
        statistic = total / self.divisor(k)
        if self.eps_inside:
            return x, torch.rsqrt(statistic + eps)
        # Where the statistic is 0, the gradient of its root would be 0/0. The masks set this gradient to 0.
        zero = statistic == 0
        root = statistic.masked_fill(zero, 1.0).sqrt().masked_fill(zero, 0.0)
        return x, 1.0 / (root + eps)

    def extra_repr(self) -> str:
        options = f"p={self.p}, eps_inside={self.eps_inside}, k_rounding={self.k_rounding!r}"
        return f"{super().extra_repr()}, {options}, weight_offset={bool(self.gain_offset)}"


class L2Norm(RMSNorm):
    """``y = x / sqrt(sum(x^2) + eps) * weight (+ bias)``: RMSNorm with the Euclidean norm in place of the RMS.

    Source: Zhang & Sennrich (2019), Table 2. Arguments and errors are those of :class:`RMSNorm`.
    """

    kind = kernels.Kind.EUCLID

    def divisor(self, k: int) -> int:  # noqa: ARG002
        return 1


@dataclass(frozen=True, kw_only=True)
class RMS(PerExampleNormOptions):
    """Options of RMSNorm.

    Attributes:
        eps_inside, weight_offset (which needs ``gain``): See :class:`RMSNorm`.
        gain: Whether the norm has a gain.
        bias: Whether the norm has a shift. None: only at the sites where the model asks for one (:attr:`Site.shift`).

    See :class:`PerExampleNormOptions` for the other options and for errors.
    """

    eps_inside: bool = True
    gain: bool = True
    weight_offset: bool = False
    bias: bool | None = None

    layer: ClassVar[type[RMSNorm]] = RMSNorm

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_offset and not self.gain:
            raise ValueError("norm.weight_offset=true needs a gain: set norm.gain=true, or leave weight_offset out")

    def normaliser(self, site: Site, **options: Any) -> RMSNorm:
        """Return the layer of a site. ``options``: further arguments of its constructor."""
        return self.layer(
            site.features,
            self.eps,
            elementwise_affine=self.gain,
            bias=bool(site.shift) if self.bias is None else self.bias,
            eps_inside=self.eps_inside,
            weight_offset=self.weight_offset,
            impl=self.impl,
            axes=self.axes_of(site),
            **options,
        )


@dataclass(frozen=True, kw_only=True)
class PRMS(RMS):
    """Options of pRMSNorm. For ``p``, ``k_rounding`` and errors see :class:`RMSNorm`, for others :class:`RMS`."""

    p: float = 0.0625
    k_rounding: str = "ceil"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fraction("norm.p", self.p)
        checks.choice("norm.k_rounding", self.k_rounding, ROUNDING)

    def normaliser(self, site: Site, **options: Any) -> RMSNorm:
        return super().normaliser(site, p=self.p, k_rounding=self.k_rounding, **options)


@dataclass(frozen=True, kw_only=True)
class L2(RMS):
    """Options of the L2 norm. See :class:`RMS`."""

    layer = L2Norm
