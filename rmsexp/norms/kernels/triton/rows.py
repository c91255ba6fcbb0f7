"""Code that all Triton kernels share: norms of single rows, and launch options.

The formulas of norms and their gradients are in ``cpp/forms.h``. The compile-time constant ``NORM`` has a norm's kind,
one of :class:`rmsexp.norms.kernels.norms.Kind`, whether eps is inside the root, and eps.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from rmsexp.norms.kernels.norms import Kind

NONE = tl.constexpr(int(Kind.NONE))
LAYER = tl.constexpr(int(Kind.LAYER))
EUCLID = tl.constexpr(int(Kind.EUCLID))
ERF = tl.constexpr(int(Kind.ERF))


@triton.jit
def indices(start, n, BLOCK: tl.constexpr):
    """Return the indices of a block of units from ``start`` on, and a mask of indices below n; both (1, BLOCK)."""
    unit = start + tl.arange(0, BLOCK)[None, :]
    return unit, unit < n


@triton.jit
def row_statistics(
    a,  # (BLOCK_ROWS, 1) pointers to the first unit of each row, or a pointer to one row
    row_exists,  # (BLOCK_ROWS, 1): false for rows beyond the last row; or True if the block is a single row
    unit_stride,  # distance between consecutive units of a row, in elements
    n,  # number of units of a row
    k,  # number of units, the first ones, that enter the statistic
    NORM: tl.constexpr,
    DTYPE: tl.constexpr,  # dtype of the statistics
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Return mean and scale of each row, two tensors (BLOCK_ROWS, 1)."""
    units = tl.arange(0, BLOCK_N)[None, :]
    mean = tl.zeros([BLOCK_ROWS, 1], DTYPE)
    if NORM[0] == NONE:
        scale = mean + 1
    else:
        if NORM[0] == LAYER:
            sums = tl.zeros([BLOCK_ROWS, BLOCK_N], DTYPE)
            for start in range(0, n, BLOCK_N):
                unit = start + units
                sums += tl.load(a + unit.to(tl.int64) * unit_stride, row_exists & (unit < n), other=0).to(DTYPE)
            mean = tl.sum(sums, 1, keep_dims=True) / n
        squares = tl.zeros([BLOCK_ROWS, BLOCK_N], DTYPE)
        for start in range(0, k, BLOCK_N):
            unit = start + units
            in_row = row_exists & (unit < k)
            value = tl.load(a + unit.to(tl.int64) * unit_stride, in_row, other=0).to(DTYPE)
            centred = tl.where(in_row, value - mean, 0)
            squares += centred * centred
        mean_square = tl.sum(squares, 1, keep_dims=True) / (1 if NORM[0] == EUCLID else k)
        scale = 1 / tl.sqrt(mean_square + NORM[2]) if NORM[1] else 1 / (tl.sqrt(mean_square) + NORM[2])
    return mean, scale


@triton.jit
def row_gradient_terms(sum_g, sum_gy, scale, n, k, NORM: tl.constexpr):
    """Return the terms ``mean_g`` and ``slope``, (rows, 1), in the gradient of the loss with respect to a row ``a``.

    ``sum_g`` and ``sum_gy``, (rows, 1), are the sums over the row of g, the gradient of the loss with respect to the
    normalised values y, and of g * y. The row has n units, of which k enter the statistic.

    The gradient with respect to a_j is ``scale * (g_j - mean_g - [j < k] * y_j * slope)``; see ``cpp/forms.h``,
    ``correction()``. Where the root is 0 with eps outside of it, the formula gives 0 / 0, and slope is set to 0.
    """
    mean_g = tl.zeros_like(sum_g)
    slope = tl.zeros_like(sum_g)
    if NORM[0] != NONE:
        slope = sum_gy / (1 if NORM[0] == EUCLID else k)
        if NORM[0] == LAYER:
            mean_g = sum_g / n
        elif not NORM[1]:
            root = 1 / scale - NORM[2]
            slope = tl.where(root > 0, slope / tl.where(root > 0, scale * root, 1), 0)
    return mean_g, slope


@triton.jit
def tanh(x):
    """Return tanh(x), within 2 units in the last place; on a GPU, fast float32 division and exp add to this error.

    For ``|x| < 0.625``, where the formula with exponentials loses digits by cancellation, this is the rational
    approximation of Cephes (S. L. Moshier, ``tanh.c``).
    """
    square = x * x
    numerator = (-9.64399179425052238628e-1 * square - 9.92877231001918586564e1) * square - 1.61468768441708447952e3
    denominator = ((square + 1.12811678491632931402e2) * square + 2.23548839060100448583e3) * square
    near_zero = x + x * square * (numerator / (denominator + 4.84406305325125486048e3))
    exponential = tl.exp(-2 * tl.abs(x))
    elsewhere = (1 - exponential) / (1 + exponential)
    return tl.where(tl.abs(x) < 0.625, near_zero, tl.where(x < 0, -elsewhere, elsewhere))


@triton.jit
def saved_statistics(a, statistics, PLACE: tl.constexpr, n, k, NORM: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return mean and scale, (1, 1), of a row ``a``, and save them in ``statistics`` for norm number PLACE."""
    mean, scale = row_statistics(a, True, 1, n, k, NORM, a.dtype.element_ty, 1, BLOCK_N)
    zero = tl.zeros([1, 1], tl.int32)
    tl.store(statistics + 2 * PLACE + zero, mean)
    tl.store(statistics + 2 * PLACE + zero + 1, scale)
    return mean, scale


@triton.jit
def load_statistics(statistics, PLACE: tl.constexpr):
    """Return the mean and scale, (1, 1), that :func:`saved_statistics` wrote for norm number PLACE."""
    zero = tl.zeros([1, 1], tl.int32)
    return tl.load(statistics + 2 * PLACE + zero), tl.load(statistics + 2 * PLACE + zero + 1)


@triton.jit
def norm_output(a, affine, width, mean, scale, unit, in_row):
    """Return ``(a - mean) * scale * gain + shift``, (1, BLOCK_N), for the units of row ``a`` with the indices ``unit``.

    ``affine`` points to the gain; the shift begins ``width`` elements after it. ``in_row``: which indices are units.
    """
    normalised = (tl.load(a + unit, in_row, other=0) - mean) * scale
    return normalised * tl.load(affine + unit, in_row, other=0) + tl.load(affine + width + unit, in_row, other=0)


@triton.jit
def norm_backward(
    gradient,  # on entry: gradient of the norm's output; on return: gradient of a
    a,  # the row that was normalised
    affine,  # pointer to the gain; the shift begins `width` elements after it
    partials,  # accumulated in place: gradient of the gain; that of the shift begins `width` elements after it
    width,
    statistics,
    PLACE: tl.constexpr,  # the norm's number in the statistics
    first,  # the first unit of the row that the norm covers
    n,  # number of units that it covers
    k,  # number of units that enter the statistic
    NORM: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute the gradients of a row, and of gain and shift, from the gradient d of the output ``y * gain + shift``.

    y is the normalised row. The gradient of gain is ``d * y``, that of shift is ``d``; both are added to ``partials``.
    The gradient of the row is the formula in :func:`row_gradient_terms` with ``g = d * gain``.
    """
    mean, scale = load_statistics(statistics, PLACE)
    gradient += first
    a += first
    affine += first
    partials += first
    DTYPE: tl.constexpr = a.dtype.element_ty
    sums_g = tl.zeros([1, BLOCK_N], DTYPE)
    sums_gy = tl.zeros([1, BLOCK_N], DTYPE)
    tl.debug_barrier()  # other threads wrote the gradient that is read here
    for start in range(0, n, BLOCK_N):
        unit, in_row = indices(start, n, BLOCK_N)
        g = tl.load(gradient + unit, in_row, other=0)
        normalised = (tl.load(a + unit, in_row, other=0) - mean) * scale
        tl.store(partials + unit, tl.load(partials + unit, in_row) + g * normalised, in_row)
        tl.store(partials + width + unit, tl.load(partials + width + unit, in_row) + g, in_row)
        g *= tl.load(affine + unit, in_row, other=0)
        sums_g += g
        sums_gy += g * normalised
    sum_g = tl.sum(sums_g, 1, keep_dims=True)
    sum_gy = tl.sum(sums_gy, 1, keep_dims=True)
    mean_g, slope = row_gradient_terms(sum_g, sum_gy, scale, n, k, NORM)
    tl.debug_barrier()  # every thread has read the gradient before it is overwritten
    for start in range(0, n, BLOCK_N):
        unit, in_row = indices(start, n, BLOCK_N)
        g = tl.load(gradient + unit, in_row, other=0) * tl.load(affine + unit, in_row, other=0)
        if NORM[0] != NONE:  # else an infinite input would give infinity times a slope of 0
            normalised = (tl.load(a + unit, in_row, other=0) - mean) * scale
            g = scale * (g - mean_g - tl.where(unit < k, normalised * slope, 0))
        tl.store(gradient + unit, g, in_row)


def launch_options(block_size: int) -> dict[str, int]:
    """Return Triton's launch options for blocks of ``block_size`` values."""
    # enable_fp_fusion is set so that results do not depend on its default in the installed version of Triton
    return {"num_warps": max(1, min(8, block_size // 128)), "enable_fp_fusion": True}


@dataclass(frozen=True)
class RowOperator:
    """An operator whose ``kernel`` has one program for each row of the batch. ``names``: its arguments, in order.

    Each parameter of the kernel gets the argument of its name, or that item of the dict ``options(arguments)``. Of the
    others, ``<name>_stride`` gets the stride of the first axis of the tensor ``<name>``, if it exists; the rest None.
    """

    kernel: Any
    names: str
    options: Callable[[dict[str, Any]], dict[str, Any]]

    def __call__(self, *arguments: Any) -> None:
        named = dict(zip(self.names.split(), arguments, strict=True))
        named |= self.options(named)
        for name in self.kernel.arg_names:
            tensor = named.get(name.removesuffix("_stride"))
            named.setdefault(name, tensor.stride(0) if name.endswith("_stride") and tensor is not None else None)
        block = math.prod(size for name, size in named.items() if name.startswith("BLOCK"))
        inputs = {name: named[name] for name in self.kernel.arg_names}
        self.kernel[(len(named["statistics"]),)](**inputs, **launch_options(block))
