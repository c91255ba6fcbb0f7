"""Norms with one statistic a row, as Triton kernels: over the last axis, or over each channel's positions of maps.

Zhang & Sennrich (2019), section 4; Ba et al. (2016). A tile is R rows side by side and U units of each; wider rows are
read tile after tile.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from rmsexp.kernels.forms import is_channels_last, is_readable, wide
from rmsexp.kernels.triton.rows import LAYER, correction, launch_options, row_statistics


@triton.jit
def _forward(
    x,
    gain,
    shift,
    y,
    mean,
    scale,
    rows,
    inner,
    channels,
    n,
    k,
    MAPS: tl.constexpr,
    KIND: tl.constexpr,
    INSIDE: tl.constexpr,
    EPS: tl.constexpr,
    R: tl.constexpr,
    U: tl.constexpr,
):
    W: tl.constexpr = scale.dtype.element_ty
    row = (tl.program_id(0) * R + tl.arange(0, R))[:, None]
    present = row < rows
    begin = (row // inner).to(tl.int64) * n * inner + row % inner
    middle, factor = row_statistics(x + begin, present, inner, n, k, KIND, INSIDE, EPS, W, R, U)
    if KIND == LAYER:
        tl.store(mean + row, middle, present)
    tl.store(scale + row, factor, present)
    for first in range(0, n, U):
        unit = first + tl.arange(0, U)[None, :]
        here = present & (unit < n)
        at = begin + unit * inner
        parameter = row % channels if MAPS else unit
        value = (tl.load(x + at, here).to(W) - middle) * factor
        if gain is not None:
            value *= tl.load(gain + parameter, here)
        if shift is not None:
            value += tl.load(shift + parameter, here)
        tl.store(y + at, value, here)


@triton.jit
def _backward(
    dy,
    x,
    gain,
    mean,
    scale,
    dx,
    dgain,
    dshift,
    rows,
    inner,
    channels,
    n,
    k,
    MAPS: tl.constexpr,
    KIND: tl.constexpr,
    INSIDE: tl.constexpr,
    EPS: tl.constexpr,
    R: tl.constexpr,
    U: tl.constexpr,
):
    W: tl.constexpr = scale.dtype.element_ty
    row = (tl.program_id(0) * R + tl.arange(0, R))[:, None]
    present = row < rows
    begin = (row // inner).to(tl.int64) * n * inner + row % inner
    part = tl.program_id(0).to(tl.int64) * n  # of dgain and dshift over the last axis: a row a program
    middle = tl.zeros([R, 1], W)
    if KIND == LAYER:
        middle = tl.load(mean + row, present, other=0)
    factor = tl.load(scale + row, present, other=1)
    added = tl.zeros([R, U], W)
    product = tl.zeros([R, U], W)
    for first in range(0, n, U):
        unit = first + tl.arange(0, U)[None, :]
        here = present & (unit < n)
        at = begin + unit * inner
        gradient = tl.load(dy + at, here, other=0).to(W)
        normalised = (tl.load(x + at, here, other=0).to(W) - middle) * factor
        if not MAPS:
            if dgain is not None:
                tl.store(dgain + part + unit, tl.sum(gradient * normalised, 0, keep_dims=True), unit < n)
            if dshift is not None:
                tl.store(dshift + part + unit, tl.sum(gradient, 0, keep_dims=True), unit < n)
            if gain is not None:
                gradient *= tl.load(gain + unit, unit < n, other=0)
        added += gradient
        product += gradient * normalised
    of_row = tl.sum(added, 1, keep_dims=True)
    along = tl.sum(product, 1, keep_dims=True)
    if MAPS:
        if dgain is not None:
            tl.store(dgain + row, along, present)
        if dshift is not None:
            tl.store(dshift + row, of_row, present)
        if gain is not None:
            of_channel = tl.load(gain + row % channels, present, other=0)
            of_row *= of_channel
            along *= of_channel
    less, slope = correction(of_row, along, factor, n, k, KIND, INSIDE, EPS)
    for first in range(0, n, U):
        unit = first + tl.arange(0, U)[None, :]
        here = present & (unit < n)
        at = begin + unit * inner
        gradient = tl.load(dy + at, here, other=0).to(W)
        if gain is not None:
            gradient *= tl.load(gain + (row % channels if MAPS else unit), here, other=0)
        normalised = (tl.load(x + at, here, other=0).to(W) - middle) * factor
        tl.store(dx + at, factor * (gradient - less - tl.where(unit < k, normalised * slope, 0)), here)


def _layout(x: Tensor, maps: bool) -> tuple[int, int, int, int]:
    """Rows, how many of them lie interleaved in memory, channels, and units of a row."""
    if not maps:
        return x.numel() // max(1, x.shape[-1]), 1, 1, x.shape[-1]
    examples, channels, height, width = x.shape
    return examples * channels, channels if is_channels_last(x) else 1, channels, height * width


def _tile(rows: int, inner: int, n: int) -> dict[str, int]:
    """Rows and units of a tile of up to 4096 values, and how it is launched.

    Many rows share a tile, as each writes its part of the gradients of gain and shift, but few have programs apart.
    """
    width = triton.next_power_of_2(max(1, n))
    r = 32 if inner > 1 else min(max(16, 4096 // width), triton.next_power_of_2(rows // 256 + 1))
    u = min(width, max(1, 4096 // r))
    return {"R": r, "U": u, **launch_options(r * u)}


def _parameter(of: Tensor | None, x: Tensor) -> Tensor | None:
    return None if of is None else of.to(wide(x)).contiguous()


def normalise_forward(
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    maps: bool,
    kind: int,
    k: int,
    inside: bool,
    eps: float,
    slope: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalises, then applies gain and shift.

    Args:
        x: ``(..., width)``, or with ``maps`` ``(batch, width, height, width of a map)``, normalised over the last two
            axes. Half and bfloat16 are computed in float32.
        gain, shift: ``(width,)``.
        kind: which norm, see :mod:`rmsexp.kernels.triton.rows`.
        k: the units of a row that enter its statistic.
        inside: eps lies inside the root.
        slope: of a leaky ReLU on the result, as a kernel of its own; 1 for none.

    Returns:
        y like ``x``; mean and scale of each row in the order of memory, float32 or for float64 float64, the mean empty
        but for layer norm.
    """
    x = x if is_readable(x, maps) else x.contiguous()
    rows, inner, channels, n = _layout(x, maps)
    y = torch.empty_like(x)
    scale = x.new_empty(rows, dtype=wide(x))
    mean = scale.new_empty(rows if kind == LAYER.value else 0)
    if x.numel():
        tile = _tile(rows, inner, n)
        k = n if kind == LAYER.value else k
        parameters = (_parameter(gain, x), _parameter(shift, x))
        _forward[(triton.cdiv(rows, tile["R"]),)](
            x, *parameters, y, mean, scale, rows, inner, channels, n, k, maps, kind, inside, eps, **tile
        )
    return y if slope == 1 else F.leaky_relu(y, slope), mean, scale


def normalise_backward(
    dy: Tensor,
    x: Tensor,
    gain: Tensor | None,
    mean: Tensor,
    scale: Tensor,
    shift: Tensor | None,
    maps: bool,
    kind: int,
    k: int,
    inside: bool,
    eps: float,
    slope: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``x``, of gain and of shift, the last two ``(width,)`` in the dtype of ``scale``, empty without one.

    Args:
        dy: the gradient of y.
        mean, scale: of :func:`normalise_forward`.
    """
    if slope != 1:
        y, _, _ = normalise_forward(x, gain, shift, maps, kind, k, inside, eps)
        dy = torch.where(y > 0, dy, dy * slope)
    x = x if is_readable(x, maps) else x.contiguous()
    if dy.stride() != x.stride():
        dy = torch.empty_like(x).copy_(dy)
    rows, inner, channels, n = _layout(x, maps)
    tile = _tile(rows, inner, n)
    programs = triton.cdiv(rows, tile["R"])
    parts = (rows // channels if n else 0, channels) if maps else (programs, n)
    dx = torch.empty_like(x)
    dgain = None if gain is None else scale.new_empty(parts)
    dshift = scale.new_empty(parts) if shift is not None else None
    if x.numel():
        k = n if kind == LAYER.value else k
        tensors = (dy, x, _parameter(gain, x), mean, scale, dx, dgain, dshift)
        _backward[(programs,)](*tensors, rows, inner, channels, n, k, maps, kind, inside, eps, **tile)
    nothing = scale.new_empty(0)
    return dx, nothing if dgain is None else dgain.sum(0), nothing if dshift is None else dshift.sum(0)
