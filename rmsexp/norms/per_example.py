"""Base classes, of layers and of options, for norms with statistics of a single example; LayerNorm (Ba et al. 2016).

Non-parametric LayerNorm is that of OLMo (Groeneveld et al. 2024).
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rmsexp.norms import kernels
from rmsexp.norms.base import EPS, FusedNormaliser, Norm, Normaliser, Site, affine
from rmsexp.system import checks

AXES = ((2, 3), (1, 2, 3))  # the normalised axes of feature maps: per channel of an example, or per example


class PerExampleNorm(FusedNormaliser):
    """``y = value * scale * weight + bias``, where ``value, scale = standardise(x)`` over the last axes of ``x``.

    A subclass defines :meth:`standardise`, and ``kind`` if a fused kernel computes the same formula. A subclass with a
    ``standardise``, ``divisor`` or ``forward`` of its own, or of a mixin, has no kernel: it does not inherit ``kind``.

    Args:
        normalized_shape: Shape of the normalised axes, and of ``weight`` and ``bias``, as in ``torch.nn.LayerNorm``.
            With ``axes``, the number of channels.
        eps: Added to the statistic. None uses the machine epsilon of the dtype in which the norm computes. As in torch,
            it may be negative; the result is NaN where a root would be of a negative number.
        gain: Whether there is a gain, ``weight``.
        shift: Whether there is a shift, ``bias``.
        impl: "eager" for elementary tensor operations, "fused" for one kernel; "eager" is used where there is none. It
            can be set later, too, except inside a recurrent layer, which reads it only at construction.
        axes: Only for feature maps, and required for them: ``(2, 3)`` for one statistic per channel of an example,
            ``(1, 2, 3)`` for one per example. Gain and shift have one value per channel.
        parameters: ``initial_gain``, ``device`` and ``dtype``, as for :class:`rmsexp.norms.Normaliser`.

    Raises: ValueError for other values of these arguments, and for input of another shape; TypeError for input that is
        not float32, float64, float16 or bfloat16.
    """

    kind: ClassVar[int | None] = None  # a value of kernels.Kind
    eps_inside = True  # whether eps is added to the statistic, and not to its root

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        owner = next(base for base in cls.__mro__ if "kind" in vars(base))
        formula = ("standardise", "divisor", "forward", "_eager")  # of which a subclass or a mixin may have its own
        if any(getattr(cls, name, None) is not getattr(owner, name, None) for name in formula):
            cls.kind = None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None,
        *,
        gain: bool,
        shift: bool,
        impl: str = "eager",
        axes: Sequence[int] | None = None,
        **parameters: Any,
    ) -> None:
        sizes: Any = (normalized_shape,) if isinstance(normalized_shape, Integral) else normalized_shape
        shape = tuple(map(operator.index, sizes))  # integers of NumPy are not int
        if not shape or min(shape) < 0:
            raise ValueError(f"normalized_shape must be one or more sizes, got {normalized_shape}")
        checks.finite("eps", eps)
        if axes is not None and tuple(axes) not in AXES:
            raise ValueError(f"axes must be (2, 3) (per channel) or (1, 2, 3) (per example), got {tuple(axes)}")
        if axes is not None and len(shape) != 1:
            raise ValueError(f"with axes, normalized_shape must be the number of channels, got {shape}")
        super().__init__(shape, gain=gain, shift=shift, maps=axes is not None, **parameters)
        self.normalized_shape = shape
        self.eps = eps
        self.dims = len(shape if axes is None else axes)  # number of normalised axes
        self._units = math.prod(shape)
        self.impl = impl

    @property
    def axes(self) -> tuple[int, ...] | None:
        """The normalised axes of feature maps; None for other input."""
        return tuple(range(4 - self.dims, 4)) if self.maps else None

    @property
    def fusible(self) -> bool:  # type: ignore[override]
        return self.kind is not None and self.axes != (1, 2, 3)

    def standardise(self, x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
        """Return two factors, such as ``x`` and ``1 / rms(x)``, whose product is ``x`` normalised, before the gain.

        Args:
            x: The input, in float32 or float64.
            axes: The normalised axes, counted from the last: ``(-1,)``, ``(-2, -1)``, …
            eps: The ``eps`` of the norm, or if that is None the machine epsilon of the dtype of ``x``.

        Both results broadcast to the shape of ``x``.
        """
        raise NotImplementedError

    def _eager(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        value, scale = self.standardise(x, tuple(range(-self.dims, 0)), self._eps(dtype))
        gain, shift = self.broadcast(self.effective_gain), self.broadcast(self.bias)
        return affine(value, scale, gain, shift, fold=self.maps)

    def add(self, x: Tensor, addend: Tensor | None, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return ``x + addend`` (``x`` without an addend) and the norm of this sum.

        With ``impl="fused"`` one operator computes both, to the same bits, if the norm is over the last axis, the
        addend has the shape of ``x`` and no higher precision (it may have a lower one under autocast), and the module
        has no hooks.
        """
        hooked = self._forward_pre_hooks or self._forward_hooks or self._backward_pre_hooks or self._backward_hooks
        fused = self.fused and not self.maps and self.dims == 1 and not hooked
        alike = addend is not None and x.shape == addend.shape and addend.is_floating_point()
        if addend is None or not (fused and alike and torch.promote_types(x.dtype, addend.dtype) == x.dtype):
            return super().add(x, addend, mask)
        self.check_input(x)
        form = self.form(self.units(x), x.dtype)
        return torch.ops.rmsexp.add_normalise.default(x, addend, self.effective_gain, self.bias, *form)

    def units(self, x: Tensor) -> int:
        """Return how many units of ``x`` are normalised together."""
        if not self.maps:
            return self._units  # computed without x, so that torch.compile sees a constant
        _, channels, height, width = x.shape
        return height * width if self.dims == 2 else channels * height * width

    def k(self, n: int) -> int:
        """Return how many of ``n`` units, the first ones, enter the statistic."""
        return n

    def _by_kernel(self, x: Tensor, slope: float) -> Tensor:
        gain, shift, n = self.effective_gain, self.bias, self.units(x)
        # not form(), since calls in Python take a large part of the time of a small norm
        form = self.kind, self.k(n), self.eps_inside, EPS[x.dtype] if self.eps is None else self.eps
        if self.maps or self.dims == 1:
            return torch.ops.rmsexp.normalise.default(x, gain, shift, self.maps, *form, slope)
        vectors = (None if v is None else v.flatten() for v in map(self.broadcast, (gain, shift)))
        y: Tensor = torch.ops.rmsexp.normalise.default(x.flatten(-self.dims), *vectors, False, *form, slope)
        return y.view(x.shape)

    def form(self, n: int, dtype: torch.dtype = torch.float32) -> kernels.Form:
        if self.kind is None:
            return super().form(n, dtype)
        return kernels.Form(self.kind, self.k(n), self.eps_inside, self._eps(dtype))

    def _eps(self, dtype: torch.dtype) -> float:
        return EPS[dtype] if self.eps is None else self.eps

    def extra_repr(self) -> str:
        """Return the arguments with which the constructor makes an equal layer, up to the values of its parameters."""
        parameters = f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        return f"{self.normalized_shape}, eps={self.eps}, {parameters}, impl={self.impl!r}, axes={self.axes}"


@dataclass(frozen=True, kw_only=True)
class PerExampleNormOptions(Norm):
    """Options that all norms with a layer derived from :class:`PerExampleNorm` have.

    Attributes:
        eps: Added to the statistic, at least 0.
        axes: The normalised axes of feature maps: [2, 3] for one statistic per channel of an example, [1, 2, 3] for one
            per example. Other input is normalised over its last axis.

    Raises: ValueError for an ``eps`` that is negative or not finite, for other ``axes``, and for [1, 2, 3] with
        ``impl="fused"``.
    """

    eps: float = 1e-5
    axes: list[int] = field(default_factory=lambda: [2, 3])

    fusible = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("norm.eps", self.eps, 0)
        if tuple(self.axes) not in AXES:
            raise ValueError(f"norm.axes must be [2,3] (per channel) or [1,2,3] (per example), got {list(self.axes)}")
        if tuple(self.axes) == (1, 2, 3) and self.impl == "fused":  # records would name an implementation not used
            raise ValueError("norm.axes=[1,2,3] has no fused kernel; use norm.impl=eager")

    def check_effect(self, model: nn.Module) -> None:
        super().check_effect(model)
        axes = tuple(self.axes)
        if axes != AXES[0] and not any(isinstance(layer, Normaliser) and layer.maps for layer in model.modules()):
            raise ValueError(f"norm.axes={list(axes)} has no effect on this task: its model has no feature maps")

    def axes_of(self, site: Site) -> tuple[int, ...] | None:
        """Return the argument ``axes`` of :class:`PerExampleNorm` for a site: None unless its input is feature maps."""
        return tuple(self.axes) if site.feature_maps else None


class LayerNorm(PerExampleNorm):
    """``y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias``, with the biased variance (Ba et al. 2016, Eq. 3).

    It can replace ``torch.nn.LayerNorm``, which is always one fused kernel; this class is one if ``impl`` is "fused".

    ``elementwise_affine``: whether there is a gain, ``weight``. ``bias``: whether there is also a shift, ``bias``; not
    without a gain. See :class:`PerExampleNorm` for the other arguments and for errors.
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
        parameters: dict[str, Any] = {"gain": elementwise_affine, "shift": elementwise_affine and bias}
        super().__init__(normalized_shape, eps, impl=impl, axes=axes, device=device, dtype=dtype, **parameters)

    def standardise(self, x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
        centred = x - x.mean(axes, keepdim=True)
        return centred, torch.rsqrt(centred.square().mean(axes, keepdim=True) + eps)


@dataclass(frozen=True, kw_only=True)
class LN(PerExampleNormOptions):
    """Options of LayerNorm, which has a shift unless the model forbids it. See :class:`PerExampleNormOptions`."""

    def normaliser(self, site: Site) -> LayerNorm:
        shift = site.shift is not False
        return LayerNorm(site.features, self.eps, bias=shift, impl=self.impl, axes=self.axes_of(site))


@dataclass(frozen=True, kw_only=True)
class NonparametricLN(PerExampleNormOptions):
    """Options of LayerNorm without gain and shift. See :class:`PerExampleNormOptions`."""

    def normaliser(self, site: Site) -> LayerNorm:
        return LayerNorm(site.features, self.eps, elementwise_affine=False, impl=self.impl, axes=self.axes_of(site))
