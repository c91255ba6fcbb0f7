"""Pairs of an eager and a fused norm layer with equal parameters, layouts of their inputs, and whether they agree."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.sites import draw, fill
from rmsexp import norms

EPS = 1e-2  # large, so that it matters whether eps is inside or outside the root
LAYERS: dict[str, Callable[..., norms.Normaliser]] = {
    "ln": norms.LayerNorm,
    "ln, gain": partial(norms.LayerNorm, bias=False),
    "nonparametric_ln": partial(norms.LayerNorm, elementwise_affine=False),
    "rms": norms.RMSNorm,
    "rms, gain and bias": partial(norms.RMSNorm, bias=True),
    "rms, bias": partial(norms.RMSNorm, elementwise_affine=False, bias=True),
    "rms, outside": partial(norms.RMSNorm, eps_inside=False),
    "rms, weight offset": partial(norms.RMSNorm, weight_offset=True),
    "prms": partial(norms.RMSNorm, p=0.3, bias=True),
    "prms, outside": partial(norms.RMSNorm, p=0.3, eps_inside=False),
    "l2": norms.L2Norm,
    "l2, outside": partial(norms.L2Norm, eps_inside=False, bias=True),
}
every = pytest.mark.parametrize("name", LAYERS)


def pointwise(kind: type[norms.DynamicTanh], features: int, _eps: float | None, **options: Any) -> norms.DynamicTanh:
    return kind(features, 0.7, maps=options.pop("axes", None) is not None, **options)


POINTWISE: dict[str, Callable[..., norms.Normaliser]] = {
    "dyt": partial(pointwise, norms.DynamicTanh),
    "dyt, no shift": partial(pointwise, norms.DynamicTanh, bias=False),
    "derf": partial(pointwise, norms.DynamicErf),
}
FORMATS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}
formats = pytest.mark.parametrize("memory", FORMATS)
# In float32, eager and fused norms sum as many as 1000 terms in different orders, and each rounding has a relative
# error of 6e-8. Errors grow like the root of the number of terms. The largest observed difference is 2e-6.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5}
Shape = tuple[int, ...]
Pair = tuple[nn.Module, nn.Module]


def pair(
    name: str, features: int | Shape, eps: float | None = EPS, dtype: torch.dtype = torch.float64, **options: Any
) -> Pair:
    """Return an eager and a fused layer with equal parameters."""
    make = {**LAYERS, **POINTWISE}[name]
    eager, fused = (fill(make(features, eps, impl=impl, **options)).to(dtype) for impl in ("eager", "fused"))
    return eager, fused


def results(layer: nn.Module, x: Tensor, dy: Tensor | None = None, **options: float) -> tuple[Tensor, ...]:
    """Return the output, and the gradients of input and parameters for the output's gradient ``dy`` (None: random)."""
    x = x.detach().requires_grad_()
    y = layer(x, **options)
    dy = draw(*x.shape, seed=7).to(x.dtype) if dy is None else dy
    return y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], dy)


def close(results: Sequence[Tensor], expected: Sequence[Tensor], **options: Any) -> None:
    tolerance = TOLERANCE[expected[0].dtype]
    torch.testing.assert_close(tuple(results), tuple(expected), rtol=tolerance, atol=tolerance, **options)


def assert_agree(layers: Pair, x: Tensor, dy: Tensor | None = None) -> None:
    eager, fused = (results(layer, x, dy) for layer in layers)
    close(fused, eager)


# --- layouts

LAYOUTS: dict[str, Callable[[], Tensor]] = {  # tensors of shape (6, 10)
    "contiguous": lambda: draw(6, 10),
    "transposed": lambda: draw(10, 6).t(),
    "every other unit": lambda: draw(6, 20)[:, ::2],
    "every other row": lambda: draw(12, 10)[::2],
    "part of a row": lambda: draw(6, 13)[:, 2:12],
    "expanded row": lambda: draw(1, 10).expand(6, 10),
    "expanded unit": lambda: draw(6, 1).expand(6, 10),
    "expanded number": lambda: draw(1, 1).expand(6, 10),
}
MAPS: dict[str, Callable[[], Tensor]] = {  # tensors of shape (2, 3, 4, 5)
    "channels first": lambda: draw(3, 2, 4, 5).transpose(0, 1),
    "transposed": lambda: draw(2, 3, 5, 4).transpose(2, 3),
    "every other channel": lambda: draw(2, 6, 4, 5)[:, ::2],
    "every other channel of channels-last": lambda: draw(2, 4, 5, 6)[..., ::2].permute(0, 3, 1, 2),
    "expanded map": lambda: draw(2, 1, 4, 5).expand(2, 3, 4, 5),
    "expanded number": lambda: draw(1, 1, 1, 1).expand(2, 3, 4, 5),
}
