"""What the norms with one statistic per example (and position) share: axes, precision, gain and shift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rmsexp import checks, kernels
from rmsexp.norms.base import IMPLS, REDUCED, Norm, Normaliser, Site, affine


class PerExampleNorm(Normaliser):
    """``y = standardise(x) * gain + shift`` with statistics over the trailing axes of each example.

    ``normalized_shape`` names those axes and the shape of gain and shift, as in ``torch.nn.LayerNorm``. With ``axes``
    (``(2, 3)`` or ``(1, 2, 3)``) the input is maps, statistics are over these axes, and ``normalized_shape`` is the
    number of channels, each with one gain and shift.

    float16 and bfloat16 are computed in float32, gain and shift included, and cast back. ``impl="fused"``: one kernel,
    but where axes are ``(1, 2, 3)`` or the kernels cannot be built.
    """

    kind: ClassVar[int]

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None,
        *,
        gain: bool,
        shift: bool,
        impl: str = "eager",
        axes: Sequence[int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        checks.choice("impl", impl, IMPLS)
        super().__init__(shape, gain=gain, shift=shift, maps=axes is not None)
        self.normalized_shape = shape
        self.eps = eps
        self.impl = impl
        self.dims = len(shape if axes is None else axes)
        self.activates = impl == "fused" and (axes is None or self.dims == 2) and kernels.load()
        self.to(device=device, dtype=dtype)

    def standardise(self, x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
        """What is re-scaled, and by which factor; both broadcast to the shape of ``x``."""
        raise NotImplementedError

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,  # noqa: ARG002
        steps: int | range | None = None,  # noqa: ARG002
        slope: float = 1.0,
    ) -> Tensor:
        if not self.maps and x.shape[-self.dims :] != self.normalized_shape:
            raise ValueError(f"expected input whose last axes are {self.normalized_shape}, got {tuple(x.shape)}")
        if self.activates:
            return self._fused(x, slope)
        wide = x.float() if x.dtype in REDUCED else x
        value, scale = self.standardise(wide, tuple(range(-self.dims, 0)), self._eps(wide.dtype))
        gain, shift = self.broadcast(self.weight), self.broadcast(self.bias)
        y = affine(value, scale, gain, shift, fold=self.maps)
        return (y if slope == 1 else F.leaky_relu(y, slope)).to(x.dtype)

    def units(self, x: Tensor) -> int:
        """How many share one statistic; a plain number under torch.compile wherever ``x`` does not decide it."""
        return math.prod(x.shape[-self.dims :] if self.maps else self.normalized_shape)

    def _fused(self, x: Tensor, slope: float) -> Tensor:
        form = self.form(self.units(x))
        if self.eps is None:
            form = form._replace(eps=self._eps(torch.float32 if x.dtype in REDUCED else x.dtype))
        if self.maps or self.dims == 1:
            return kernels.normalise(x, self.weight, self.bias, form, maps=self.maps, slope=slope)
        gain, shift = (None if vector is None else vector.flatten() for vector in (self.weight, self.bias))
        return kernels.normalise(x.flatten(-self.dims), gain, shift, form, maps=False, slope=slope).view(x.shape)

    def _eps(self, dtype: torch.dtype) -> float:
        return torch.finfo(dtype).eps if self.eps is None else self.eps

    def form(self, n: int) -> kernels.Form:
        return kernels.Form(self.kind, n, eps=self.eps or 0.0)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


def first(x: Tensor, dims: int, k: int) -> list[Tensor]:
    """Views that together hold the first ``k`` elements of the flattened last ``dims`` axes.

    Slicing before flattening spares a copy of maps in channels-last memory.
    """
    axis = x.dim() - dims
    whole, rest = divmod(k, math.prod(x.shape[axis + 1 :]))
    if whole == x.shape[axis]:  # even a slice of everything costs a copy in the backward pass
        return [x]
    parts = [x.narrow(axis, 0, whole)] if whole else []
    return parts + (first(x.select(axis, whole), dims - 1, rest) if rest else [])


@dataclass(frozen=True, kw_only=True)
class PerExampleNormOptions(Norm):
    """``axes``: those of the statistics of maps ``(batch, channels, height, width)``; other input has the last axis."""

    eps: float = 1e-5
    axes: list[int] = field(default_factory=lambda: [2, 3])

    impls = IMPLS

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("norm.eps", self.eps, 0)
        if list(self.axes) not in ([2, 3], [1, 2, 3]):
            raise ValueError(f"norm.axes must be [2,3] (each channel by itself) or [1,2,3], got {list(self.axes)}")

    def axes_of(self, site: Site) -> tuple[int, ...] | None:
        return tuple(self.axes) if site.maps else None
