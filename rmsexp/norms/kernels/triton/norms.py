"""Norms over the last axis, or over the positions of each channel of feature maps, as Triton kernels.

A *row* is a set of n units that share a statistic; for maps, it is the positions of one channel of one example. Each
program computes BLOCK_ROWS rows, BLOCK_N units of each at a time. The same kernels compute the sum of two tensors and a
norm of the sum over its last axis. The arguments of the operators are described in ``cpp/norms.cpp``.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from rmsexp.norms.kernels.norms import Kind, compute_dtype, is_channels_last, is_readable
from rmsexp.norms.kernels.triton.rows import LAYER, check_form, launch_options, row_gradient_terms, row_statistics


@triton.jit
def _forward(
    x,  # (rows, n); consecutive units of a row are `unit_stride` elements apart
    addend,  # as x, or of lower precision; is added to it before the norm; or None
    total,  # as x, written: x + addend; None without an addend
    gain,  # (n,), for maps (channels,); or None
    shift,  # (n,), for maps (channels,); or None
    y,  # written, with the layout of x
    mean,  # (rows,), written, for LAYER; otherwise empty
    scale,  # (rows,), written
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
            unit = start + tl.arange(0, BLOCK_N)[None, :]
            in_row = row_exists & (unit < n)
            offset = row_begin + unit.to(tl.int64) * unit_stride
            value = tl.load(x + offset, in_row).to(DTYPE) + tl.load(addend + offset, in_row).to(DTYPE)
            tl.store(total + offset, value, in_row)
        tl.debug_barrier()  # other threads wrote the total that is read from here on
        x = total
    row_mean, row_scale = row_statistics(x + row_begin, row_exists, unit_stride, n, k, NORM, DTYPE, BLOCK_ROWS, BLOCK_N)
    if NORM[0] == LAYER:
        tl.store(mean + row, row_mean, row_exists)
    tl.store(scale + row, row_scale, row_exists)
    for start in range(0, n, BLOCK_N):
        unit = start + tl.arange(0, BLOCK_N)[None, :]
        in_row = row_exists & (unit < n)
        offset = row_begin + unit.to(tl.int64) * unit_stride
        parameter = row % channels if MAPS else unit
        exists = row_exists if MAPS else unit < n  # in the shape of `parameter`
        value = (tl.load(x + offset, in_row).to(DTYPE) - row_mean) * row_scale
        if gain is not None:
            value *= tl.load(gain + parameter, exists)
        if shift is not None:
            value += tl.load(shift + parameter, exists)
        tl.store(y + offset, value, in_row)


@triton.jit
def _backward(
    dy,  # (rows, n), with the layout of x
    dtotal,  # as dy, is added to the gradient of x; or None
    x,  # (rows, n), what was normalised; consecutive units of a row are `unit_stride` elements apart
    gain,  # (n,), for maps (channels,); or None
    mean,  # (rows,) for LAYER; otherwise empty
    scale,  # (rows,)
    dx,  # written, with the layout of x
    dgain,  # (programs, n), for maps (rows,), written: gradient of gain from each program's rows (maps: each row)
    dshift,  # as dgain, the gradient of shift; dgain or dshift is None if there is no gain or no shift
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
    """Compute the gradients of the inputs of :func:`_forward`.

    The formulas are those of ``rows_backward`` in ``cpp/norm_rows.h``. A program writes the sums over its rows, or for
    maps over the units of each row; the caller adds these parts. With an addend, x is the total.
    """
    DTYPE: tl.constexpr = scale.dtype.element_ty
    row = (tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    row_exists = row < rows
    row_begin = row // unit_stride * n * unit_stride + row % unit_stride
    part = tl.program_id(0).to(tl.int64) * n  # this program's row of dgain and dshift, unless MAPS
    row_mean = tl.zeros([BLOCK_ROWS, 1], DTYPE)
    if NORM[0] == LAYER:
        row_mean = tl.load(mean + row, row_exists, other=0)
    row_scale = tl.load(scale + row, row_exists, other=1)
    sums_g = tl.zeros([BLOCK_ROWS, BLOCK_N], DTYPE)
    sums_gy = tl.zeros([BLOCK_ROWS, BLOCK_N], DTYPE)
    for start in range(0, n, BLOCK_N):
        unit = start + tl.arange(0, BLOCK_N)[None, :]
        in_row = row_exists & (unit < n)
        offset = row_begin + unit.to(tl.int64) * unit_stride
        g = tl.load(dy + offset, in_row, other=0).to(DTYPE)
        normalised = (tl.load(x + offset, in_row, other=0).to(DTYPE) - row_mean) * row_scale
        if not MAPS:
            if dgain is not None:
                tl.store(dgain + part + unit, tl.sum(g * normalised, 0, keep_dims=True), unit < n)
            if dshift is not None:
                tl.store(dshift + part + unit, tl.sum(g, 0, keep_dims=True), unit < n)
            if gain is not None:
                g *= tl.load(gain + unit, unit < n, other=0)
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
    mean_g, slope = row_gradient_terms(sum_g, sum_gy, row_scale, n, k, NORM)
    for start in range(0, n, BLOCK_N):
        unit = start + tl.arange(0, BLOCK_N)[None, :]
        in_row = row_exists & (unit < n)
        offset = row_begin + unit.to(tl.int64) * unit_stride
        g = tl.load(dy + offset, in_row, other=0).to(DTYPE)
        if gain is not None:
            g *= tl.load(gain + (row % channels if MAPS else unit), row_exists if MAPS else unit < n, other=0)
        normalised = (tl.load(x + offset, in_row, other=0).to(DTYPE) - row_mean) * row_scale
        gradient = row_scale * (g - mean_g - tl.where(unit < k, normalised * slope, 0))
        if dtotal is not None:
            gradient += tl.load(dtotal + offset, in_row, other=0).to(DTYPE)
        tl.store(dx + offset, gradient, in_row)


class Layout(NamedTuple):
    """How the rows of a tensor lie in memory: each has ``n`` units, which are ``unit_stride`` elements apart.

    ``channels``: number of channels of feature maps; 1 for other tensors.
    """

    rows: int
    unit_stride: int
    channels: int
    n: int


def layout_of(x: Tensor, maps: bool) -> Layout:
    if not maps:
        return Layout(x.numel() // max(1, x.shape[-1]), 1, 1, x.shape[-1])
    examples, channels, height, width = x.shape
    return Layout(examples * channels, channels if is_channels_last(x) else 1, channels, height * width)


def block_options(layout: Layout) -> dict[str, int]:
    """Return the size of a program's block, at most 4096 values, and Triton's launch options.

    For channels-last maps, a block has 32 rows. Otherwise it has one row if the tensor has fewer than 256 rows, else
    several. With several rows, fewer programs write parts of the gradients of gain and shift (except for maps).
    """
    width = triton.next_power_of_2(max(1, layout.n))
    several = min(max(16, 4096 // width), triton.next_power_of_2(layout.rows // 256 + 1))
    rows = 32 if layout.unit_stride > 1 else several
    units = min(width, max(1, 4096 // rows))
    return {"BLOCK_ROWS": rows, "BLOCK_N": units, **launch_options(rows * units)}


def wide_parameter(vector: Tensor | None, x: Tensor) -> Tensor | None:
    return None if vector is None else vector.to(compute_dtype(x.dtype)).contiguous()


def with_layout(x: Tensor, like: Tensor) -> Tensor:
    """Return ``x`` with the strides of ``like``, as a copy if it has others."""
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, mean, scale and total, which is empty without an addend. A separate kernel applies the leaky ReLU."""
    x = x if is_readable(x, maps) else x.contiguous()
    addend = None if addend is None else with_layout(addend, x)
    layout = layout_of(x, maps)
    total, y = None if addend is None else torch.empty_like(x), torch.empty_like(x)
    scale = x.new_empty(layout.rows, dtype=compute_dtype(x.dtype))
    mean = scale.new_empty(layout.rows if kind == Kind.LAYER else 0)
    if x.numel():
        options = block_options(layout)
        tensors = (x, addend, total, wide_parameter(gain, x), wide_parameter(shift, x), y, mean, scale)
        k = checked_units(kind, layout.n, k, inside)
        grid = (triton.cdiv(layout.rows, options["BLOCK_ROWS"]),)
        _forward[grid](*tensors, *layout, k, maps, (kind, inside, eps), **options)
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, to which ``dtotal`` is added, and of gain and shift."""
    if slope != 1:
        y, *_ = normalise_forward(x, None, gain, shift, maps, kind, k, inside, eps)
        dy = torch.where(y > 0, dy, dy * slope)
    x = x if is_readable(x, maps) else x.contiguous()
    dy, dtotal = with_layout(dy, x), None if dtotal is None else with_layout(dtotal, x)
    layout = layout_of(x, maps)
    options = block_options(layout)
    programs = triton.cdiv(layout.rows, options["BLOCK_ROWS"])
    examples = layout.rows // layout.channels if x.numel() else 0
    parts = (examples, layout.channels) if maps else (programs, layout.n)
    dx = torch.empty_like(x)
    dgain, dshift = (None if vector is None else scale.new_empty(parts) for vector in (gain, shift))
    if x.numel():
        k = checked_units(kind, layout.n, k, inside)
        tensors = (dy, dtotal, x, wide_parameter(gain, x), mean, scale, dx, dgain, dshift)
        _backward[(programs,)](*tensors, *layout, k, maps, (kind, inside, eps), **options)
    empty = scale.new_empty(0)
    return dx, empty if dgain is None else dgain.sum(0), empty if dshift is None else dshift.sum(0)


def checked_units(kind: int, n: int, k: int, inside: bool) -> int:
    """Return how many of ``n`` units enter the statistic, for layer norm all. Raises: ValueError (check_form)."""
    k = n if kind == Kind.LAYER else k
    check_form(kind, n, k, inside)
    return k
