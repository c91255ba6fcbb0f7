"""What the Triton kernels share: how a norm's statistics and gradients are computed on rows, and how they are launched.

``normalised = (a - mean) * scale``. Kinds: 0 none (mean 0, scale 1), 1 the root of the mean of the first k squares,
2 layer norm, 3 the root of the sum of the first k squares.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl
from torch import Tensor

NONE = tl.constexpr(0)
LAYER = tl.constexpr(2)
EUCLID = tl.constexpr(3)


@triton.jit
def row_statistics(
    a,
    present,
    step,
    n,
    k,
    KIND: tl.constexpr,
    INSIDE: tl.constexpr,
    EPS: tl.constexpr,
    W: tl.constexpr,
    R: tl.constexpr,
    U: tl.constexpr,
):
    """Mean and scale, (R, 1) in dtype W, of the rows that begin at ``a`` and whose units lie ``step`` apart."""
    units = tl.arange(0, U)[None, :]
    mean = tl.zeros([R, 1], W)
    if KIND == NONE:
        scale = mean + 1
    else:
        if KIND == LAYER:
            added = tl.zeros([R, U], W)
            for first in range(0, n, U):
                unit = first + units
                added += tl.load(a + unit * step, present & (unit < n), other=0).to(W)
            mean = tl.sum(added, 1, keep_dims=True) / n
        squares = tl.zeros([R, U], W)
        for first in range(0, k, U):
            unit = first + units
            here = present & (unit < k)
            centred = tl.where(here, tl.load(a + unit * step, here, other=0).to(W) - mean, 0)
            squares += centred * centred
        mean_square = tl.sum(squares, 1, keep_dims=True) / (1 if KIND == EUCLID else k)
        scale = 1 / tl.sqrt(mean_square + EPS) if INSIDE else 1 / (tl.sqrt(mean_square) + EPS)
    return mean, scale


@triton.jit
def correction(added, product, scale, n, k, KIND: tl.constexpr, INSIDE: tl.constexpr, EPS: tl.constexpr):
    """What the statistics send back, from the sums over a row of g and of g * normalised, g the gradient of normalised.

    The gradient of unit j is ``scale * (g - mean - [j < k] * normalised * slope)``; returns mean and slope.
    """
    mean = tl.zeros_like(added)
    slope = tl.zeros_like(added)
    if KIND != NONE:
        slope = product / (1 if KIND == EUCLID else k)
        if KIND == LAYER:
            mean = added / n
        elif not INSIDE:
            # Without eps; where the root is 0 the formula's 0/0 is taken as 0.
            root = 1 / scale - EPS
            slope = tl.where(root > 0, slope / tl.where(root > 0, scale * root, 1), 0)
    return mean, slope


@triton.jit
def tanh(x):
    """Within 2 units in the last place, near 0 too, where exponentials alone cancel.

    On a GPU float32 adds the error of its quick division and exponential. The rational approximation is the one of
    Cephes (S. L. Moshier, ``tanh.c``).
    """
    square = x * x
    above = (-9.64399179425052238628e-1 * square - 9.92877231001918586564e1) * square - 1.61468768441708447952e3
    below = ((square + 1.12811678491632931402e2) * square + 2.23548839060100448583e3) * square
    near = x + x * square * (above / (below + 4.84406305325125486048e3))
    shrunk = tl.exp(-2 * tl.abs(x))
    far = (1 - shrunk) / (1 + shrunk)
    return tl.where(tl.abs(x) < 0.625, near, tl.where(x < 0, -far, far))


@triton.jit
def save_statistics(to, mean, scale):
    zero = tl.zeros([1, 1], tl.int32)
    tl.store(to + zero, mean)
    tl.store(to + zero + 1, scale)


@triton.jit
def load_statistics(of):
    zero = tl.zeros([1, 1], tl.int32)
    return tl.load(of + zero), tl.load(of + zero + 1)


@triton.jit
def summand(a, affine, width, mean, scale, unit, here):
    """gain * normalised + shift of some units; ``affine``: gain and shift, each of ``width``."""
    normalised = (tl.load(a + unit, here, other=0) - mean) * scale
    return normalised * tl.load(affine + unit, here, other=0) + tl.load(affine + width + unit, here, other=0)


@triton.jit
def to_input(
    to,
    a,
    affine,
    partials,
    width,
    mean,
    scale,
    n,
    k,
    KIND: tl.constexpr,
    INSIDE: tl.constexpr,
    EPS: tl.constexpr,
    U: tl.constexpr,
):
    """Turns the gradient of a norm's n summands into that of ``a``, in place, and adds those of gain and shift."""
    W: tl.constexpr = a.dtype.element_ty
    units = tl.arange(0, U)[None, :]
    added = tl.zeros([1, U], W)
    product = tl.zeros([1, U], W)
    tl.debug_barrier()  # what is read here, other threads wrote
    for first in range(0, n, U):
        unit = first + units
        here = unit < n
        gradient = tl.load(to + unit, here, other=0)
        normalised = (tl.load(a + unit, here, other=0) - mean) * scale
        tl.store(partials + unit, tl.load(partials + unit, here) + gradient * normalised, here)
        tl.store(partials + width + unit, tl.load(partials + width + unit, here) + gradient, here)
        gradient *= tl.load(affine + unit, here, other=0)
        added += gradient
        product += gradient * normalised
    of_row = tl.sum(added, 1, keep_dims=True)
    along = tl.sum(product, 1, keep_dims=True)
    less, slope = correction(of_row, along, scale, n, k, KIND, INSIDE, EPS)
    tl.debug_barrier()
    for first in range(0, n, U):
        unit = first + units
        here = unit < n
        gradient = tl.load(to + unit, here, other=0) * tl.load(affine + unit, here, other=0)
        normalised = (tl.load(a + unit, here, other=0) - mean) * scale
        tl.store(to + unit, scale * (gradient - less - tl.where(unit < k, normalised * slope, 0)), here)


def launch_options(values: int) -> dict[str, int]:
    """For a tile of so many values. Multiply-adds are fused whatever the default of Triton's version is."""
    return {"num_warps": max(1, min(8, values // 128)), "enable_fp_fusion": True}


def strides(*matrices: Tensor | None) -> list[int]:
    return [0 if of is None else of.stride(0) for of in matrices]
