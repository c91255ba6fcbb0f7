"""One step of additive attention (Bahdanau et al. 2015) with a normalised query, as Triton kernels.

Shapes: B rows of the batch, one per program; S source positions; C features of keys and query; A features of values.
Tensors are float32 or float64 and contiguous, except that the rows of the batch may have any stride. ``mask``, (B, S),
is a padding mask, true where a position is not padding. Keys and values at padding positions are not read. The
formulas, and the operators' arguments, are in ``cpp/attention.h``.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import Any

import torch
import triton
import triton.language as tl

from rmsexp.norms.kernels.triton.rows import (
    RowOperator,
    indices,
    load_statistics,
    norm_backward,
    norm_output,
    saved_statistics,
    tanh,
)

QUERY = tl.constexpr(0)  # number of the norm in a row of statistics, which holds this norm only


@triton.jit
def _positions(start, mask, length, BLOCK_POSITIONS: tl.constexpr):
    """Return the positions of a block from ``start`` on, and their part of the mask; both (BLOCK_POSITIONS, 1)."""
    position = start + tl.arange(0, BLOCK_POSITIONS)[:, None]
    return position, tl.load(mask + position, position < length, other=0)


@triton.jit
def _forward(
    keys,  # (B, S, C)
    query,  # (B, C)
    values,  # (B, S, A)
    mask,  # (B, S)
    score,  # (C,)
    affine,  # (2, C): gain and shift of the query
    statistics,  # (B, 2), written: mean and scale of the query
    alpha,  # (B, S), written: attention weights
    context,  # (B, A), written: sum of the values, weighted by alpha
    keys_stride,
    query_stride,
    values_stride,
    mask_stride,
    statistics_stride,
    alpha_stride,
    context_stride,
    length,  # S
    width,  # C
    depth,  # A
    k,  # number of units in the statistic of the query
    NORM: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    DTYPE: tl.constexpr = keys.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    keys += row * keys_stride
    query += row * query_stride
    values += row * values_stride
    mask += row * mask_stride
    statistics += row * statistics_stride
    alpha += row * alpha_stride
    context += row * context_stride
    mean, scale = saved_statistics(query, statistics, QUERY, width, k, NORM, BLOCK_N)
    # alpha first holds the energies, score . tanh(keys + N(query)), and then their softmax.
    maxima = tl.full([BLOCK_POSITIONS, 1], float("-inf"), DTYPE)
    for position_start in range(0, length, BLOCK_POSITIONS):
        position, valid = _positions(position_start, mask, length, BLOCK_POSITIONS)
        products = tl.zeros([BLOCK_POSITIONS, BLOCK_N], DTYPE)
        for start in range(0, width, BLOCK_N):
            unit, in_row = indices(start, width, BLOCK_N)
            key = tl.load(keys + position * width + unit, valid & in_row, other=0)
            activation = tanh(key + norm_output(query, affine, width, mean, scale, unit, in_row))
            products += activation * tl.load(score + unit, in_row, other=0)
        energy = tl.where(valid, tl.sum(products, 1, keep_dims=True), float("-inf"))
        tl.store(alpha + position, energy, position < length)
        maxima = tl.maximum(maxima, energy)
    tl.debug_barrier()
    maximum = tl.max(maxima, 0, keep_dims=True)
    exponentials = tl.zeros([BLOCK_POSITIONS, 1], DTYPE)
    for position_start in range(0, length, BLOCK_POSITIONS):
        position, valid = _positions(position_start, mask, length, BLOCK_POSITIONS)
        exponentials += tl.where(valid, tl.exp(tl.load(alpha + position, valid, other=0) - maximum), 0)
    total = tl.sum(exponentials, 0, keep_dims=True)
    for position_start in range(0, length, BLOCK_POSITIONS):
        position, valid = _positions(position_start, mask, length, BLOCK_POSITIONS)
        weight = tl.where(valid, tl.exp(tl.load(alpha + position, valid, other=0) - maximum) / total, 0)
        tl.debug_barrier()  # every thread has read the energies before they are overwritten
        tl.store(alpha + position, weight, position < length)
    tl.debug_barrier()
    for start in range(0, depth, BLOCK_N):
        unit, in_row = indices(start, depth, BLOCK_N)
        weighted = tl.zeros([BLOCK_POSITIONS, BLOCK_N], DTYPE)
        for position_start in range(0, length, BLOCK_POSITIONS):
            position, valid = _positions(position_start, mask, length, BLOCK_POSITIONS)
            value = tl.load(values + position * depth + unit, valid & in_row, other=0)
            weighted += tl.load(alpha + position, valid, other=0) * value
        tl.store(context + unit, tl.sum(weighted, 0, keep_dims=True), in_row)


@triton.jit
def _backward(
    dcontext,  # (B, A): gradient of context
    keys,  # (B, S, C)
    query,  # (B, C)
    values,  # (B, S, A)
    mask,  # (B, S)
    score,  # (C,)
    affine,  # (2, C): gain and shift of the query
    statistics,  # (B, 2): mean and scale of the query
    alpha,  # (B, S): attention weights
    dalpha,  # (B, S), scratch memory
    dkeys,  # (B, S, C), accumulated in place: gradient of keys
    dquery,  # (B, C), written: gradient of query
    partials,  # (B, 3, C), accumulated in place: gradients of score, gain and shift for each row of the batch
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
    length,  # S
    width,  # C
    depth,  # A
    k,  # number of units in the statistic of the query
    NORM: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    DTYPE: tl.constexpr = keys.dtype.element_ty
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
    mean, scale = load_statistics(statistics, QUERY)
    averages = tl.zeros([BLOCK_POSITIONS, 1], DTYPE)
    for position_start in range(0, length, BLOCK_POSITIONS):
        position, valid = _positions(position_start, mask, length, BLOCK_POSITIONS)
        products = tl.zeros([BLOCK_POSITIONS, BLOCK_N], DTYPE)
        for start in range(0, depth, BLOCK_N):
            unit, in_row = indices(start, depth, BLOCK_N)
            value = tl.load(values + position * depth + unit, valid & in_row, other=0)
            products += tl.load(dcontext + unit, in_row, other=0) * value
        d_alpha = tl.sum(products, 1, keep_dims=True)
        tl.store(dalpha + position, d_alpha, valid)
        averages += tl.load(alpha + position, valid, other=0) * d_alpha
    tl.debug_barrier()
    average = tl.sum(averages, 0, keep_dims=True)
    for start in range(0, width, BLOCK_N):
        unit, in_row = indices(start, width, BLOCK_N)
        normalised_query = norm_output(query, affine, width, mean, scale, unit, in_row)
        weight = tl.load(score + unit, in_row, other=0)
        d_score = tl.zeros([BLOCK_POSITIONS, BLOCK_N], DTYPE)
        d_query = tl.zeros([BLOCK_POSITIONS, BLOCK_N], DTYPE)
        for position_start in range(0, length, BLOCK_POSITIONS):
            position, valid = _positions(position_start, mask, length, BLOCK_POSITIONS)
            offset = position * width + unit
            d_alpha = tl.load(dalpha + position, valid, other=0)
            d_energy = tl.load(alpha + position, valid, other=0) * (d_alpha - average)
            activation = tanh(tl.load(keys + offset, valid & in_row, other=0) + normalised_query)
            d_key = d_energy * weight * (1 - activation * activation)
            tl.store(dkeys + offset, tl.load(dkeys + offset, valid & in_row, other=0) + d_key, valid & in_row)
            d_score += d_energy * activation
            d_query += d_key
        d_score = tl.sum(d_score, 0, keep_dims=True)
        tl.store(partials + unit, tl.load(partials + unit, in_row, other=0) + d_score, in_row)
        tl.store(dquery + unit, tl.sum(d_query, 0, keep_dims=True), in_row)
    norm_backward(dquery, query, affine, partials + width, width, statistics, QUERY, 0, width, k, NORM, BLOCK_N)


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the kernels' arguments that are neither arguments of the operator nor strides."""
    (_, length, width), (kind, k, inside) = arguments["keys"].shape, arguments["form"]
    positions, units = min(16, triton.next_power_of_2(length)), min(256, triton.next_power_of_2(width))
    sizes = {"length": length, "width": width, "depth": arguments["values"].shape[2], "k": k}
    blocks = {"BLOCK_POSITIONS": positions, "BLOCK_N": units, "dalpha": torch.empty_like(arguments["alpha"])}
    return {**sizes, "NORM": (kind, bool(inside), arguments["eps"]), **blocks}


# The tanh is computed again in the backward pass: saving it would take as much memory as the keys for every target
# position. The gradient of the values is left to the caller.
attention_forward = RowOperator(
    _forward, "keys query values mask score affine form eps statistics alpha context", _options
)
attention_backward = RowOperator(
    _backward,
    "dcontext keys query values mask score affine statistics alpha form eps dkeys dquery partials",
    _options,
)
