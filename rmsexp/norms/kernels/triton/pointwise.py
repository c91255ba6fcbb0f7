"""Pointwise functions with gain and shift, as Triton kernels: ``y = f(alpha * x + offset) * gain + shift``.

Each program computes BLOCK_ROWS rows of n values, BLOCK_N of each at a time. The values of a row have different gains,
the last axis or the channels of channels-last maps; or with PER_ROW they have one gain: a row is then a channel of an
example, and row i is of channel ``i % channels``. The operators' arguments are described in ``cpp/pointwise.cpp``.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from rmsexp.norms.kernels.norms import compute_dtype, is_channels_last, is_readable
from rmsexp.norms.kernels.triton.norms import (
    Layout,
    block_options,
    layout_of,
    wide_parameter,
    with_layout,
)
from rmsexp.norms.kernels.triton.rows import tanh


@triton.jit
def _value(x, alpha, offset, ERF: tl.constexpr):
    """Return ``u = alpha * x + offset``, and ``f(u)``."""
    u = x * tl.load(alpha)
    if offset is not None:
        u += tl.load(offset)
    return u, tl.erf(u) if ERF else tanh(u)


@triton.jit
def _forward(
    x,  # (rows, n)
    alpha,  # (1,)
    offset,  # (1,), or None
    gain,  # (n,), with PER_ROW (channels,)
    shift,  # as gain, or None
    y,  # (rows, n), written
    rows,
    n,
    channels,
    PER_ROW: tl.constexpr,
    ERF: tl.constexpr,  # whether f is erf; otherwise it is tanh
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    DTYPE: tl.constexpr = alpha.dtype.element_ty
    row = (tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    for start in range(0, n, BLOCK_N):
        unit = start + tl.arange(0, BLOCK_N)[None, :]
        in_row = (row < rows) & (unit < n)
        parameter = row % channels if PER_ROW else unit
        exists = row < rows if PER_ROW else unit < n  # in the shape of `parameter`
        _, value = _value(tl.load(x + row * n + unit, in_row, other=0).to(DTYPE), alpha, offset, ERF)
        value *= tl.load(gain + parameter, exists, other=0)
        if shift is not None:
            value += tl.load(shift + parameter, exists, other=0)
        tl.store(y + row * n + unit, value, in_row)


@triton.jit
def _backward(
    dy,  # (rows, n)
    x,  # (rows, n)
    alpha,  # (1,)
    offset,  # (1,), or None
    gain,  # (n,), with PER_ROW (channels,)
    dx,  # (rows, n), written
    dscalars,  # (programs, 2), written: gradients of alpha and offset from each program's rows
    dgain,  # (programs, n), with PER_ROW (rows,), written: gradient of gain from each program's rows, or each row
    dshift,  # as dgain, the gradient of shift; None if there is no shift
    rows,
    n,
    channels,
    PER_ROW: tl.constexpr,
    ERF: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute the gradients of the inputs of :func:`_forward`, with ``h = dy * gain * f'(u)``."""
    DTYPE: tl.constexpr = alpha.dtype.element_ty
    program = tl.program_id(0).to(tl.int64)
    row = (program * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    sums_alpha = tl.zeros([BLOCK_ROWS, BLOCK_N], DTYPE)
    sums_offset = tl.zeros([BLOCK_ROWS, BLOCK_N], DTYPE)
    sums_gain = tl.zeros([BLOCK_ROWS, BLOCK_N], DTYPE)
    sums_shift = tl.zeros([BLOCK_ROWS, BLOCK_N], DTYPE)
    for start in range(0, n, BLOCK_N):
        unit = start + tl.arange(0, BLOCK_N)[None, :]
        in_row = (row < rows) & (unit < n)
        parameter = row % channels if PER_ROW else unit
        exists = row < rows if PER_ROW else unit < n  # in the shape of `parameter`
        g = tl.load(dy + row * n + unit, in_row, other=0).to(DTYPE)
        a = tl.load(x + row * n + unit, in_row, other=0).to(DTYPE)
        u, value = _value(a, alpha, offset, ERF)
        product = tl.where(in_row, g * value, 0)
        if PER_ROW:
            sums_gain += product
            sums_shift += g
        else:
            tl.store(dgain + program * n + unit, tl.sum(product, 0, keep_dims=True), unit < n)
            if dshift is not None:
                tl.store(dshift + program * n + unit, tl.sum(g, 0, keep_dims=True), unit < n)
        derivative = 1.1283791670955126 * tl.exp(-u * u) if ERF else 1 - value * value
        h = tl.where(in_row, g * tl.load(gain + parameter, exists, other=0) * derivative, 0)
        sums_alpha += tl.where(in_row, h * a, 0)
        sums_offset += h
        tl.store(dx + row * n + unit, h * tl.load(alpha), in_row)
    if PER_ROW:
        tl.store(dgain + row, tl.sum(sums_gain, 1, keep_dims=True), row < rows)
        if dshift is not None:
            tl.store(dshift + row, tl.sum(sums_shift, 1, keep_dims=True), row < rows)
    tl.store(dscalars + 2 * program, tl.sum(sums_alpha))
    tl.store(dscalars + 2 * program + 1, tl.sum(sums_offset))


def _layout(x: Tensor, maps: bool) -> tuple[Layout, bool]:
    """Return how the kernels read ``x``, and whether a row has one gain."""
    channels_last = maps and is_channels_last(x)
    return layout_of(x.movedim(1, -1), False) if channels_last else layout_of(x, maps), maps and not channels_last


def pointwise_forward(
    x: Tensor,
    alpha: Tensor,
    offset: Tensor | None,
    gain: Tensor,
    shift: Tensor | None,
    function: str,
    maps: bool,
    slope: float = 1.0,
) -> Tensor:
    """Return y. A separate kernel applies the leaky ReLU."""
    x = x if is_readable(x, maps) else x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        layout, per_row = _layout(x, maps)
        options = block_options(layout)
        parameters = [wide_parameter(vector, x) for vector in (alpha, offset, gain, shift)]
        sizes = (layout.rows, layout.n, layout.channels)
        _forward[(triton.cdiv(layout.rows, options["BLOCK_ROWS"]),)](
            x, *parameters, y, *sizes, per_row, function == "erf", **options
        )
    return y if slope == 1 else F.leaky_relu(y, slope)


def pointwise_backward(
    dy: Tensor,
    x: Tensor,
    alpha: Tensor,
    offset: Tensor | None,
    gain: Tensor,
    shift: Tensor | None,
    function: str,
    maps: bool,
    slope: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, of alpha and offset together, ``(2,)``, of gain, and of shift."""
    if slope != 1:
        y = pointwise_forward(x, alpha, offset, gain, shift, function, maps)
        dy = torch.where(y > 0, dy, dy * slope)
    x = x if is_readable(x, maps) else x.contiguous()
    dy = with_layout(dy, x)
    (layout, per_row), width = _layout(x, maps), x.shape[1 if maps else -1]
    options = block_options(layout)
    programs = triton.cdiv(layout.rows, options["BLOCK_ROWS"]) if x.numel() else 0
    parts = (layout.rows // layout.channels if x.numel() else 0, width) if per_row else (programs, width)
    dx, dscalars = torch.empty_like(x), x.new_empty((programs, 2), dtype=compute_dtype(x.dtype))
    dgain = dscalars.new_empty(parts)
    dshift = None if shift is None else dscalars.new_empty(parts)
    if x.numel():
        parameters = [wide_parameter(vector, x) for vector in (alpha, offset, gain)]
        tensors = (dy, x, *parameters, dx, dscalars, dgain, dshift)
        sizes = (layout.rows, layout.n, layout.channels)
        _backward[(programs,)](*tensors, *sizes, per_row, function == "erf", **options)
    return dx, dscalars.sum(0), dgain.sum(0), dscalars.new_empty(0) if dshift is None else dshift.sum(0)
