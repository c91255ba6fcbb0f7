"""Norms over the last axis, or over the positions of each channel of feature maps, as Triton kernels.

A *row* is a set of n units that share a statistic; for maps, it is the positions of one channel of one example. Each
program computes BLOCK_ROWS rows, BLOCK_N units of each at a time. The same kernels compute the sum of two tensors and a
norm of the sum over its last axis, and pointwise functions: ``y = f(alpha * x + offset) * gain + shift``. For these, a
row of channels-last maps is a position, and its units are the channels. The arguments of the operators are described in
``cpp/norms.cpp``.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from rmsexp.norms.kernels.norms import Kind, compute_dtype, is_channels_last, is_readable
from rmsexp.norms.kernels.triton.rows import ERF, LAYER, launch_options, row_gradient_terms, row_statistics, tanh


@triton.jit
def _function(x, alpha, offset, NORM: tl.constexpr):
    """Return ``u = alpha * x + offset``, and ``f(u)``, where f is tanh or erf."""
    u = x * tl.load(alpha)
    if offset is not None:
        u += tl.load(offset)
    return u, tl.erf(u) if NORM[0] == ERF else tanh(u)


@triton.jit
def _block(start, row_begin, row_exists, unit_stride, n, BLOCK_N: tl.constexpr):
    """Return a block's column indices, the masks of valid columns and of valid elements, and the elements' offsets."""
    unit = start + tl.arange(0, BLOCK_N)[None, :]
    return unit, unit < n, row_exists & (unit < n), row_begin + unit.to(tl.int64) * unit_stride


@triton.jit
def _forward(
    x,  # (rows, n); consecutive units of a row are `unit_stride` elements apart
    addend,  # as x, or of lower precision; is added to it before the norm; or None
    total,  # as x, written: x + addend; None without an addend
    gain,  # (n,), for maps (channels,); or None
    shift,  # (n,), for maps (channels,); or None
    y,  # written, with the layout of x
    mean,  # (rows,), written, for LAYER; otherwise empty
    scale,  # (rows,), written; empty for a pointwise function
    alpha,  # (1,), of a pointwise function; None for norms
    offset,  # (1,), of a pointwise function; or None
    rows,  # number of rows
    unit_stride,
    channels,  # number of channels of maps
    n,  # number of units of a row
    k,  # number of units that enter the statistic
    MAPS: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute mean and scale of each row, and ``y = (x - mean) * scale * gain + shift``.

    With an addend, ``total = x + addend`` takes the place of x.
    """
    DTYPE: tl.constexpr = scale.dtype.element_ty
    row = (tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    row_exists = row < rows
    row_begin = row // unit_stride * n * unit_stride + row % unit_stride
    if addend is not None:
        for start in range(0, n, BLOCK_N):
            _, _, in_row, place = _block(start, row_begin, row_exists, unit_stride, n, BLOCK_N)
            value = tl.load(x + place, in_row).to(DTYPE) + tl.load(addend + place, in_row).to(DTYPE)
            tl.store(total + place, value, in_row)
        tl.debug_barrier()  # other threads wrote the total that is read from here on
        x = total
    if alpha is None:
        begin = x + row_begin
        row_mean, row_scale = row_statistics(begin, row_exists, unit_stride, n, k, NORM, DTYPE, BLOCK_ROWS, BLOCK_N)
        if NORM[0] == LAYER:
            tl.store(mean + row, row_mean, row_exists)
        tl.store(scale + row, row_scale, row_exists)
    for start in range(0, n, BLOCK_N):
        unit, exists, in_row, place = _block(start, row_begin, row_exists, unit_stride, n, BLOCK_N)
        parameter = row % channels if MAPS else unit
        exists = row_exists if MAPS else exists  # in the shape of `parameter`
        value = tl.load(x + place, in_row, other=0).to(DTYPE)
        if alpha is None:
            value = (value - row_mean) * row_scale
        else:
            _, value = _function(value, alpha, offset, NORM)
        if gain is not None:
            value *= tl.load(gain + parameter, exists)
        if shift is not None:
            value += tl.load(shift + parameter, exists)
        tl.store(y + place, value, in_row)


@triton.jit
def _backward(
    dy,  # (rows, n), with the layout of x
    dtotal,  # as dy, is added to the gradient of x; or None
    x,  # (rows, n), what was normalised; consecutive units of a row are `unit_stride` elements apart
    gain,  # (n,), for maps (channels,); or None
    mean,  # (rows,) for LAYER; otherwise empty
    scale,  # (rows,)
    alpha,  # (1,), of a pointwise function; None for norms
    offset,  # (1,), of a pointwise function; or None
    dx,  # written, with the layout of x
    dgain,  # (programs, n), for maps (rows,), written: gradient of gain from each program's rows (maps: each row)
    dshift,  # as dgain, the gradient of shift; dgain or dshift is None if there is no gain or no shift
    dnumbers,  # (programs, 2), written: gradients of alpha and offset from each program's rows; None without alpha
    rows,  # number of rows
    unit_stride,
    channels,  # number of channels of maps
    n,  # number of units of a row
    k,  # number of units that enter the statistic
    MAPS: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute dx by the formula in :func:`rmsexp.norms.kernels.triton.rows.row_gradient_terms`, with ``g = dy * gain``.

    The gradient of gain is ``dy * normalised``, that of shift is ``dy``: each program writes the sums over its rows, or
    for maps over the units of each row; the caller adds these parts. With an addend, x is the total. For a pointwise
    function, f(u) is in the place of the normalised values, and dx is ``alpha * h`` with ``h = dy * gain * f'(u)``.
    """
    DTYPE: tl.constexpr = scale.dtype.element_ty
    row = (tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    row_exists = row < rows
    row_begin = row // unit_stride * n * unit_stride + row % unit_stride
    part = tl.program_id(0).to(tl.int64) * n  # this program's row of dgain and dshift, unless MAPS
    if alpha is None:
        row_mean = tl.zeros([BLOCK_ROWS, 1], DTYPE)
        if NORM[0] == LAYER:
            row_mean = tl.load(mean + row, row_exists, other=0)
        row_scale = tl.load(scale + row, row_exists, other=1)
    sums_g = tl.zeros([BLOCK_ROWS, BLOCK_N], DTYPE)
    sums_gy = tl.zeros([BLOCK_ROWS, BLOCK_N], DTYPE)
    sums_alpha = tl.zeros([BLOCK_ROWS, BLOCK_N], DTYPE)
    sums_offset = tl.zeros([BLOCK_ROWS, BLOCK_N], DTYPE)
    for start in range(0, n, BLOCK_N):
        unit, exists, in_row, place = _block(start, row_begin, row_exists, unit_stride, n, BLOCK_N)
        g = tl.load(dy + place, in_row, other=0).to(DTYPE)
        value = tl.load(x + place, in_row, other=0).to(DTYPE)
        if alpha is None:
            normalised = (value - row_mean) * row_scale
        else:
            u, normalised = _function(value, alpha, offset, NORM)
            row_gain = tl.load(gain + (row % channels if MAPS else unit), row_exists if MAPS else exists, other=0)
            derivative = 1.1283791670955126 * tl.exp(-u * u) if NORM[0] == ERF else 1 - normalised * normalised
            h = tl.where(in_row, g * row_gain * derivative, 0)
            sums_alpha += tl.where(in_row, h * value, 0)
            sums_offset += h
            tl.store(dx + place, h * tl.load(alpha), in_row)
            normalised = tl.where(in_row, normalised, 0)
        if not MAPS:
            if dgain is not None:
                tl.store(dgain + part + unit, tl.sum(g * normalised, 0, keep_dims=True), exists)
            if dshift is not None:
                tl.store(dshift + part + unit, tl.sum(g, 0, keep_dims=True), exists)
            if gain is not None:
                g *= tl.load(gain + unit, exists, other=0)
        if MAPS or (alpha is None):  # else nothing reads the sums
            sums_g += g
            sums_gy += g * normalised
    sum_g = tl.sum(sums_g, 1, keep_dims=True)
    sum_gy = tl.sum(sums_gy, 1, keep_dims=True)
    if MAPS:  # all units of a row have the same gain, so that it multiplies the sums
        if dgain is not None:
            tl.store(dgain + row, sum_gy, row_exists)
        if dshift is not None:
            tl.store(dshift + row, sum_g, row_exists)
        if gain is not None:
            row_gain = tl.load(gain + row % channels, row_exists, other=0)
            sum_g *= row_gain
            sum_gy *= row_gain
    if alpha is None:
        mean_g, slope = row_gradient_terms(sum_g, sum_gy, row_scale, n, k, NORM)
        for start in range(0, n, BLOCK_N):
            unit, exists, in_row, place = _block(start, row_begin, row_exists, unit_stride, n, BLOCK_N)
            g = tl.load(dy + place, in_row, other=0).to(DTYPE)
            if gain is not None:
                g *= tl.load(gain + (row % channels if MAPS else unit), row_exists if MAPS else exists, other=0)
            normalised = (tl.load(x + place, in_row, other=0).to(DTYPE) - row_mean) * row_scale
            gradient = row_scale * (g - mean_g - tl.where(unit < k, normalised * slope, 0))
            if dtotal is not None:
                gradient += tl.load(dtotal + place, in_row, other=0).to(DTYPE)
            tl.store(dx + place, gradient, in_row)
    else:
        tl.store(dnumbers + 2 * tl.program_id(0).to(tl.int64), tl.sum(sums_alpha))
        tl.store(dnumbers + 2 * tl.program_id(0).to(tl.int64) + 1, tl.sum(sums_offset))


def kernel_layout(x: Tensor, maps: bool, kind: int, k: int, inside: bool, eps: float) -> tuple[Any, ...]:
    """Return the kernels' arguments from ``rows`` to ``NORM``, for a tensor that :func:`is_readable` accepts."""
    norm, channels_last = (kind, inside, eps), maps and is_channels_last(x)
    if not maps or (channels_last and kind in (Kind.TANH, Kind.ERF)):
        n = x.shape[1 if maps else -1]
        return x.numel() // max(1, n), 1, 1, n, n if kind == Kind.LAYER else k, False, norm
    (examples, channels), n = x.shape[:2], math.prod(x.shape[2:])
    unit_stride = channels if channels_last else 1
    return examples * channels, unit_stride, channels, n, n if kind == Kind.LAYER else k, True, norm


def block_options(rows: int, unit_stride: int, n: int) -> dict[str, int]:
    """Return the size of a program's block, at most 4096 values, and Triton's launch options.

    For channels-last maps, a block has 32 rows. Otherwise it has one row if the tensor has fewer than 256 rows, else
    several. With several rows, fewer programs write parts of the gradients of gain and shift (except for maps).
    """
    width = triton.next_power_of_2(max(1, n))
    several = min(max(16, 4096 // width), triton.next_power_of_2(rows // 256 + 1))
    block_rows = 32 if unit_stride > 1 else several
    units = min(width, max(1, 4096 // block_rows))
    return {"BLOCK_ROWS": block_rows, "BLOCK_N": units, **launch_options(block_rows * units)}


def wide_parameter(vector: Tensor | None, x: Tensor) -> Tensor | None:
    return None if vector is None else vector.to(compute_dtype(x.dtype)).contiguous()


def with_layout(x: Tensor, like: Tensor) -> Tensor:
    """Return ``x``, or, if its strides differ, a copy with the strides and dtype of ``like``."""
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)


def normalise_forward(
    x: Tensor,
    addend: Tensor | None,
    gain: Tensor | None,
    shift: Tensor | None,
    maps: bool,
    kind: int,
    k: int,
    inside: bool,
    eps: float,
    slope: float = 1.0,
    alpha: Tensor | None = None,
    offset: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, mean, scale and total, which is empty without an addend. A separate kernel applies the leaky ReLU."""
    x = x if is_readable(x, maps) else x.contiguous()
    addend = None if addend is None else with_layout(addend, x)
    layout = kernel_layout(x, maps, kind, k, inside, eps)
    rows, unit_stride, _, n, *_ = layout
    total, y = None if addend is None else torch.empty_like(x), torch.empty_like(x)
    scale = x.new_empty(rows if alpha is None else 0, dtype=compute_dtype(x.dtype))
    mean = scale.new_empty(rows if kind == Kind.LAYER else 0)
    if x.numel():
        options = block_options(rows, unit_stride, n)
        gain, shift, alpha, offset = (wide_parameter(vector, x) for vector in (gain, shift, alpha, offset))
        tensors = (x, addend, total, gain, shift, y, mean, scale, alpha, offset)
        _forward[(triton.cdiv(rows, options["BLOCK_ROWS"]),)](*tensors, *layout, **options)
    return y if slope == 1 else F.leaky_relu(y, slope), mean, scale, x.new_empty(0) if total is None else total


def normalise_backward(
    dy: Tensor,
    dtotal: Tensor | None,
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
    alpha: Tensor | None = None,
    offset: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x (plus ``dtotal``), of gain, of shift, and of alpha and offset together, ``(2,)``."""
    if slope != 1:
        y, *_ = normalise_forward(x, None, gain, shift, maps, kind, k, inside, eps, 1.0, alpha, offset)
        dy = torch.where(y > 0, dy, dy * slope)
    x = x if is_readable(x, maps) else x.contiguous()
    dy, dtotal = with_layout(dy, x), None if dtotal is None else with_layout(dtotal, x)
    layout = kernel_layout(x, maps, kind, k, inside, eps)
    rows, unit_stride, channels, n, _, per_row, _ = layout
    options = block_options(rows, unit_stride, n)
    programs = triton.cdiv(rows, options["BLOCK_ROWS"]) if x.numel() else 0
    parts = (rows // channels if x.numel() else 0, channels) if per_row else (programs, n)
    dx = torch.empty_like(x)
    dgain, dshift = (None if vector is None else scale.new_empty(parts) for vector in (gain, shift))
    dnumbers = None if alpha is None else scale.new_empty((programs, 2))
    if x.numel():
        gain, alpha, offset = (wide_parameter(vector, x) for vector in (gain, alpha, offset))
        tensors = (dy, dtotal, x, gain, mean, scale, alpha, offset, dx, dgain, dshift, dnumbers)
        _backward[(programs,)](*tensors, *layout, **options)
    sums = [scale.new_empty(0) if each is None else each.sum(0) for each in (dgain, dshift, dnumbers)]
    return dx, sums[0], sums[1], sums[2]
