"""The sum of two tensors and a norm of the sum over its last axis, as Triton kernels.

Each program computes BLOCK_ROWS rows, BLOCK_N units of each at a time (see :mod:`rmsexp.kernels.triton.norms`).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from rmsexp.kernels.forms import Kind, is_readable, wide
from rmsexp.kernels.triton.checks import check, check_contiguous, check_form
from rmsexp.kernels.triton.norms import block_options, check_arguments, layout_of, wide_parameter
from rmsexp.kernels.triton.rows import LAYER, row_gradient_terms, row_statistics


@triton.jit
def _forward(
    x,  # (rows, n)
    addend,  # (rows, n)
    gain,  # (n,) or None
    shift,  # (n,) or None
    total,  # (rows, n), written
    y,  # (rows, n), written
    mean,  # (rows,), written, for LAYER; otherwise empty
    scale,  # (rows,), written
    rows,  # number of rows
    n,  # number of units of a row
    k,  # number of units that enter the statistic
    KIND: tl.constexpr,
    EPS_INSIDE: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute ``total = x + addend``, its mean and scale, and ``y = (total - mean) * scale * gain + shift``."""
    DTYPE: tl.constexpr = scale.dtype.element_ty
    row = (tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    row_exists = row < rows
    units = tl.arange(0, BLOCK_N)[None, :]
    for start in range(0, n, BLOCK_N):
        in_row = row_exists & (start + units < n)
        offset = row * n + start + units
        value = tl.load(x + offset, in_row).to(DTYPE) + tl.load(addend + offset, in_row).to(DTYPE)
        tl.store(total + offset, value, in_row)
    tl.debug_barrier()  # other threads wrote the total that is read from here on
    row_mean, row_scale = row_statistics(
        total + row * n, row_exists, 1, n, k, KIND, EPS_INSIDE, EPS, DTYPE, BLOCK_ROWS, BLOCK_N
    )
    if KIND == LAYER:
        tl.store(mean + row, row_mean, row_exists)
    tl.store(scale + row, row_scale, row_exists)
    for start in range(0, n, BLOCK_N):
        unit = start + units
        in_row = row_exists & (unit < n)
        offset = row * n + unit
        value = (tl.load(total + offset, in_row).to(DTYPE) - row_mean) * row_scale
        if gain is not None:
            value *= tl.load(gain + unit, in_row)
        if shift is not None:
            value += tl.load(shift + unit, in_row)
        tl.store(y + offset, value, in_row)


@triton.jit
def _backward(
    dtotal,  # (rows, n)
    dy,  # (rows, n)
    total,  # (rows, n)
    gain,  # (n,) or None
    mean,  # (rows,) for LAYER; otherwise empty
    scale,  # (rows,)
    dx,  # (rows, n), written
    dgain,  # (programs, n), written: gradient of gain from each program's rows; None without a gain
    dshift,  # (programs, n), written: gradient of shift from each program's rows; None without a shift
    rows,  # number of rows
    n,  # number of units of a row
    k,  # number of units that enter the statistic
    KIND: tl.constexpr,
    EPS_INSIDE: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute the gradients of the inputs of :func:`_forward`; x and addend have the same.

    The gradient of x is ``dtotal`` plus that of the norm's input (:func:`row_gradient_terms`, with ``g = dy * gain``).
    The gradient of gain is the sum of ``dy * normalised``, and that of shift is the sum of ``dy``. A program writes the
    sums over its rows; the caller adds these parts.
    """
    DTYPE: tl.constexpr = scale.dtype.element_ty
    row = (tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    row_exists = row < rows
    units = tl.arange(0, BLOCK_N)[None, :]
    part = tl.program_id(0).to(tl.int64) * n  # this program's row of dgain and dshift
    row_mean = tl.zeros([BLOCK_ROWS, 1], DTYPE)
    if KIND == LAYER:
        row_mean = tl.load(mean + row, row_exists, other=0)
    row_scale = tl.load(scale + row, row_exists, other=1)
    sums_g = tl.zeros([BLOCK_ROWS, BLOCK_N], DTYPE)
    sums_gy = tl.zeros([BLOCK_ROWS, BLOCK_N], DTYPE)
    for start in range(0, n, BLOCK_N):
        unit = start + units
        in_row = row_exists & (unit < n)
        offset = row * n + unit
        g = tl.load(dy + offset, in_row, other=0).to(DTYPE)
        normalised = (tl.load(total + offset, in_row, other=0).to(DTYPE) - row_mean) * row_scale
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
    mean_g, slope = row_gradient_terms(sum_g, sum_gy, row_scale, n, k, KIND, EPS_INSIDE, EPS)
    for start in range(0, n, BLOCK_N):
        unit = start + units
        in_row = row_exists & (unit < n)
        offset = row * n + unit
        g = tl.load(dy + offset, in_row, other=0).to(DTYPE)
        if gain is not None:
            g *= tl.load(gain + unit, in_row, other=0)
        normalised = (tl.load(total + offset, in_row, other=0).to(DTYPE) - row_mean) * row_scale
        gradient = row_scale * (g - mean_g - tl.where(unit < k, normalised * slope, 0))
        tl.store(dx + offset, gradient + tl.load(dtotal + offset, in_row, other=0).to(DTYPE), in_row)


def add_normalise_forward(
    x: Tensor,
    addend: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    kind: int,
    k: int,
    inside: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``total = x + addend``, ``y = (total - mean) * scale * gain + shift``, mean and scale.

    ``addend`` has the shape and dtype of ``x``. For the other arguments, mean and scale see
    :func:`rmsexp.kernels.triton.norms.normalise_forward`.
    """
    check_arguments(x, gain, shift, False, 1.0)
    check("addend", addend, tuple(x.shape), x.dtype, x.device)
    x = x if is_readable(x) else x.contiguous()
    addend = _with_layout(addend, x)
    layout = layout_of(x, False)
    total, y = torch.empty_like(x), torch.empty_like(x)
    gain, shift = wide_parameter(gain, x), wide_parameter(shift, x)
    scale = x.new_empty(layout.rows, dtype=wide(x))
    mean = scale.new_empty(layout.rows if kind == Kind.LAYER else 0)
    if x.numel():
        options = block_options(layout)
        k = layout.n if kind == Kind.LAYER else k
        check_form(kind, layout.n, k)
        tensors = (x, addend, gain, shift, total, y, mean, scale)
        grid = (triton.cdiv(layout.rows, options["BLOCK_ROWS"]),)
        _forward[grid](*tensors, layout.rows, layout.n, k, kind, inside, eps, **options)
    return total, y, mean, scale


def add_normalise_backward(
    dtotal: Tensor,
    dy: Tensor,
    total: Tensor,
    gain: Tensor | None,
    mean: Tensor,
    scale: Tensor,
    shift: Tensor | None,
    kind: int,
    k: int,
    inside: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of x, which is that of addend, too, and the gradients of gain and shift.

    Args:
        dtotal: Gradient of ``total``.
        dy: Gradient of ``y``.
        total: The sum that :func:`add_normalise_forward` returned.

    For the other arguments and results see :func:`rmsexp.kernels.triton.norms.normalise_backward`.
    """
    check_arguments(total, gain, shift, False, 1.0)
    for name, gradient in (("dtotal", dtotal), ("dy", dy)):
        check(name, gradient, tuple(total.shape), total.dtype, total.device)
    total = total if is_readable(total) else total.contiguous()
    dtotal, dy = _with_layout(dtotal, total), _with_layout(dy, total)
    layout = layout_of(total, False)
    check_contiguous(scale, scale=(scale, (layout.rows,)), mean=(mean, (layout.rows if kind == Kind.LAYER else 0,)))
    options = block_options(layout)
    programs = triton.cdiv(layout.rows, options["BLOCK_ROWS"])
    dx = torch.empty_like(total)
    dgain, dshift = (None if vector is None else scale.new_empty(programs, layout.n) for vector in (gain, shift))
    if total.numel():
        k = layout.n if kind == Kind.LAYER else k
        check_form(kind, layout.n, k)
        tensors = (dtotal, dy, total, wide_parameter(gain, total), mean, scale, dx, dgain, dshift)
        _backward[(programs,)](*tensors, layout.rows, layout.n, k, kind, inside, eps, **options)
    empty = scale.new_empty(0)
    return dx, empty if dgain is None else dgain.sum(0), empty if dshift is None else dshift.sum(0)


def _with_layout(x: Tensor, like: Tensor) -> Tensor:
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)
