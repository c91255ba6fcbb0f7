"""One step of additive attention (Bahdanau et al. 2015) with a normalised query, as Triton kernels: a program a row.

Shapes: rows of the batch B, source length S, width C of keys and query, width A of the values. Tensors are float32 or
float64 and contiguous but for the rows of the batch, which may lie any stride apart. A mask, ``(B, S)``, is true where
a position is real; what lies elsewhere is not read.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl
from torch import Tensor

from rmsexp.kernels.triton.rows import (
    launch_options,
    load_statistics,
    row_statistics,
    save_statistics,
    strides,
    summand,
    tanh,
    to_input,
)


@triton.jit
def _forward(
    keys,
    query,
    values,
    mask,
    score,
    affine,
    statistics,
    alpha,
    context,
    keys_stride,
    query_stride,
    values_stride,
    mask_stride,
    statistics_stride,
    alpha_stride,
    context_stride,
    length,
    width,
    depth,
    k,
    KIND: tl.constexpr,
    INSIDE: tl.constexpr,
    EPS: tl.constexpr,
    P: tl.constexpr,
    U: tl.constexpr,
):
    W: tl.constexpr = keys.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    keys += row * keys_stride
    query += row * query_stride
    values += row * values_stride
    mask += row * mask_stride
    statistics += row * statistics_stride
    alpha += row * alpha_stride
    context += row * context_stride
    positions = tl.arange(0, P)[:, None]
    units = tl.arange(0, U)[None, :]
    mean, scale = row_statistics(query, True, 1, width, k, KIND, INSIDE, EPS, W, 1, U)
    save_statistics(statistics, mean, scale)
    most = tl.full([P, 1], float("-inf"), W)
    for start in range(0, length, P):
        position = start + positions
        real = tl.load(mask + position, position < length, other=0)
        products = tl.zeros([P, U], W)
        for first in range(0, width, U):
            unit = first + units
            here = unit < width
            key = tl.load(keys + position * width + unit, real & here, other=0)
            seen = tanh(key + summand(query, affine, width, mean, scale, unit, here))
            products += seen * tl.load(score + unit, here, other=0)
        energy = tl.where(real, tl.sum(products, 1, keep_dims=True), float("-inf"))
        tl.store(alpha + position, energy, position < length)
        most = tl.maximum(most, energy)
    tl.debug_barrier()
    highest = tl.max(most, 0, keep_dims=True)
    exponentials = tl.zeros([P, 1], W)
    for start in range(0, length, P):
        position = start + positions
        real = tl.load(mask + position, position < length, other=0)
        exponentials += tl.where(real, tl.exp(tl.load(alpha + position, real, other=0) - highest), 0)
    total = tl.sum(exponentials, 0, keep_dims=True)
    for start in range(0, length, P):
        position = start + positions
        real = tl.load(mask + position, position < length, other=0)
        weight = tl.where(real, tl.exp(tl.load(alpha + position, real, other=0) - highest) / total, 0)
        tl.debug_barrier()  # each thread has read what is overwritten here
        tl.store(alpha + position, weight, position < length)
    tl.debug_barrier()
    for first in range(0, depth, U):
        unit = first + units
        here = unit < depth
        weighted = tl.zeros([P, U], W)
        for start in range(0, length, P):
            position = start + positions
            real = tl.load(mask + position, position < length, other=0)
            value = tl.load(values + position * depth + unit, real & here, other=0)
            weighted += tl.load(alpha + position, real, other=0) * value
        tl.store(context + unit, tl.sum(weighted, 0, keep_dims=True), here)


@triton.jit
def _backward(
    dcontext,
    keys,
    query,
    values,
    mask,
    score,
    affine,
    statistics,
    alpha,
    dalpha,
    dkeys,
    dquery,
    partials,
    dcontext_stride,
    keys_stride,
    query_stride,
    values_stride,
    mask_stride,
    statistics_stride,
    alpha_stride,
    dalpha_stride,
    dkeys_stride,
    dquery_stride,
    partials_stride,
    length,
    width,
    depth,
    k,
    KIND: tl.constexpr,
    INSIDE: tl.constexpr,
    EPS: tl.constexpr,
    P: tl.constexpr,
    U: tl.constexpr,
):
    W: tl.constexpr = keys.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    dcontext += row * dcontext_stride
    keys += row * keys_stride
    query += row * query_stride
    values += row * values_stride
    mask += row * mask_stride
    statistics += row * statistics_stride
    alpha += row * alpha_stride
    dalpha += row * dalpha_stride
    dkeys += row * dkeys_stride
    dquery += row * dquery_stride
    partials += row * partials_stride
    positions = tl.arange(0, P)[:, None]
    units = tl.arange(0, U)[None, :]
    mean, scale = load_statistics(statistics)
    averaged = tl.zeros([P, 1], W)
    for start in range(0, length, P):
        position = start + positions
        real = tl.load(mask + position, position < length, other=0)
        products = tl.zeros([P, U], W)
        for first in range(0, depth, U):
            unit = first + units
            here = unit < depth
            value = tl.load(values + position * depth + unit, real & here, other=0)
            products += tl.load(dcontext + unit, here, other=0) * value
        of_weight = tl.sum(products, 1, keep_dims=True)
        tl.store(dalpha + position, of_weight, real)
        averaged += tl.load(alpha + position, real, other=0) * of_weight
    tl.debug_barrier()
    average = tl.sum(averaged, 0, keep_dims=True)
    for first in range(0, width, U):
        unit = first + units
        here = unit < width
        of_query = summand(query, affine, width, mean, scale, unit, here)
        factor = tl.load(score + unit, here, other=0)
        d_score = tl.zeros([P, U], W)
        d_query = tl.zeros([P, U], W)
        for start in range(0, length, P):
            position = start + positions
            real = tl.load(mask + position, position < length, other=0)
            at = position * width + unit
            of_energy = tl.load(alpha + position, real, other=0) * (tl.load(dalpha + position, real, other=0) - average)
            seen = tanh(tl.load(keys + at, real & here, other=0) + of_query)
            gradient = of_energy * factor * (1 - seen * seen)
            tl.store(dkeys + at, tl.load(dkeys + at, real & here, other=0) + gradient, real & here)
            d_score += of_energy * seen
            d_query += gradient
        d_score = tl.sum(d_score, 0, keep_dims=True)
        tl.store(partials + unit, tl.load(partials + unit, here, other=0) + d_score, here)
        tl.store(dquery + unit, tl.sum(d_query, 0, keep_dims=True), here)
    to_input(dquery, query, affine, partials + width, width, mean, scale, width, k, KIND, INSIDE, EPS, U)


def _tile(length: int, width: int) -> dict[str, int]:
    positions, units = min(16, triton.next_power_of_2(length)), min(256, triton.next_power_of_2(width))
    return {"P": positions, "U": units, **launch_options(positions * units)}


def attention_forward(
    keys: Tensor,
    query: Tensor,
    values: Tensor,
    mask: Tensor,
    score: Tensor,
    affine: Tensor,
    form: list[int],
    eps: float,
    statistics: Tensor,
    alpha: Tensor,
    context: Tensor,
) -> None:
    """``alpha = softmax(score . tanh(keys + N(query)))`` over real positions; ``context = alpha . values``.

    Args:
        keys: ``(B, S, C)``.
        query: raw, ``(B, C)``.
        values: ``(B, S, A)``.
        score: ``(C,)``.
        affine: of the query, ``(2, C)``: gain and shift.
        form: kind, units in the statistic, whether eps lies inside the root.
        statistics: of the query, written, ``(B, 2)``.
        alpha: written, ``(B, S)``; 0 where a position is not real.
        context: written, ``(B, A)``.
    """
    kind, k, inside = form
    rows, length, width = keys.shape
    tensors = (keys, query, values, mask, score, affine, statistics, alpha, context)
    sizes = (length, width, values.shape[2], k, kind, bool(inside), eps)
    _forward[(rows,)](
        *tensors,
        *strides(keys, query, values, mask, statistics, alpha, context),
        *sizes,
        **_tile(length, width),
    )


def attention_backward(
    dcontext: Tensor,
    keys: Tensor,
    query: Tensor,
    values: Tensor,
    mask: Tensor,
    score: Tensor,
    affine: Tensor,
    statistics: Tensor,
    alpha: Tensor,
    form: list[int],
    eps: float,
    dkeys: Tensor,
    dquery: Tensor,
    partials: Tensor,
) -> None:
    """Gradients of :func:`attention_forward`, but for the values' one.

    The tanh is computed anew: kept, it would take the room of the keys at every step of the target.

    Args:
        dkeys: added to, ``(B, S, C)``.
        dquery: written, ``(B, C)``.
        partials: added to, ``(B, 3, C)``: each row's part of the gradients of score, gain and shift.
    """
    kind, k, inside = form
    rows, length, width = keys.shape
    dalpha = alpha.new_empty(alpha.shape)
    tensors = (dcontext, keys, query, values, mask, score, affine, statistics, alpha, dalpha, dkeys, dquery, partials)
    sizes = (length, width, values.shape[2], k, kind, bool(inside), eps)
    _backward[(rows,)](
        *tensors,
        *strides(*(of for of in tensors if of is not score and of is not affine)),
        *sizes,
        **_tile(length, width),
    )
