"""One time step of the normalised GRU behind its matrix products, as Triton kernels: a program a row.

Shapes: rows of the batch B, hidden size H. Matrices are float32 or float64, their last axis contiguous and their rows
any stride apart. Statistics are pairs of mean and scale. A mask, ``(B,)``, is true where a row is real.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl
from torch import Tensor

from rmsexp.kernels.triton.rows import (
    load_statistics,
    row_statistics,
    save_statistics,
    strides,
    summand,
    tanh,
    to_input,
)
from rmsexp.kernels.triton.steps import is_real, skip_row, tile


@triton.jit
def _forward(
    ax,
    ah,
    h,
    mask,
    bias,
    affine,
    gates,
    statistics,
    out,
    ax_stride,
    ah_stride,
    h_stride,
    mask_stride,
    gates_stride,
    statistics_stride,
    out_stride,
    hidden,
    k_gates,
    k_candidate,
    KIND: tl.constexpr,
    INSIDE: tl.constexpr,
    EPS: tl.constexpr,
    U: tl.constexpr,
):
    W: tl.constexpr = ax.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    units = tl.arange(0, U)[None, :]
    ax += row * ax_stride
    ah += row * ah_stride
    h += row * h_stride
    gates += row * gates_stride
    statistics += row * statistics_stride
    out += row * out_stride
    both = 2 * hidden
    width = 3 * hidden
    if bias is not None:
        for first in range(0, width, U):
            unit = first + units
            here = unit < width
            tl.store(ah + unit, tl.load(ah + unit, here) + tl.load(bias + unit, here), here)
        tl.debug_barrier()
    xg_mean, xg_scale = row_statistics(ax, True, 1, both, k_gates, KIND, INSIDE, EPS, W, 1, U)
    xc_mean, xc_scale = row_statistics(ax + both, True, 1, hidden, k_candidate, KIND, INSIDE, EPS, W, 1, U)
    hg_mean, hg_scale = row_statistics(ah, True, 1, both, k_gates, KIND, INSIDE, EPS, W, 1, U)
    hc_mean, hc_scale = row_statistics(ah + both, True, 1, hidden, k_candidate, KIND, INSIDE, EPS, W, 1, U)
    save_statistics(statistics, xg_mean, xg_scale)
    save_statistics(statistics + 2, xc_mean, xc_scale)
    save_statistics(statistics + 4, hg_mean, hg_scale)
    save_statistics(statistics + 6, hc_mean, hc_scale)
    of_h = affine + 2 * width
    real = is_real(mask, row, mask_stride)
    for first in range(0, hidden, U):
        unit = first + units
        here = unit < hidden
        last = tl.load(h + unit, here)
        if real:
            u = hidden + unit
            c = both + unit
            x = summand(ax, affine, width, xg_mean, xg_scale, unit, here)
            reset = tl.sigmoid(x + summand(ah, of_h, width, hg_mean, hg_scale, unit, here))
            x = summand(ax, affine, width, xg_mean, xg_scale, u, here)
            update = tl.sigmoid(x + summand(ah, of_h, width, hg_mean, hg_scale, u, here))
            x = summand(ax, affine, width, xc_mean, xc_scale, c, here)
            candidate = tanh(x + reset * summand(ah, of_h, width, hc_mean, hc_scale, c, here))
            tl.store(gates + unit, reset, here)
            tl.store(gates + u, update, here)
            tl.store(gates + c, candidate, here)
            last = update * last + (1 - update) * candidate
        tl.store(out + unit, last, here)


@triton.jit
def _backward(
    dout,
    dh,
    ax,
    ah,
    h,
    gates,
    statistics,
    mask,
    affine,
    dax,
    dah,
    partials,
    dout_stride,
    dh_stride,
    ax_stride,
    ah_stride,
    h_stride,
    gates_stride,
    statistics_stride,
    mask_stride,
    dax_stride,
    dah_stride,
    partials_stride,
    hidden,
    k_gates,
    k_candidate,
    KIND: tl.constexpr,
    INSIDE: tl.constexpr,
    EPS: tl.constexpr,
    U: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if dout is not None:
        dout += row * dout_stride
    dh += row * dh_stride
    ax += row * ax_stride
    ah += row * ah_stride
    h += row * h_stride
    gates += row * gates_stride
    statistics += row * statistics_stride
    dax += row * dax_stride
    dah += row * dah_stride
    both = 2 * hidden
    width = 3 * hidden
    if is_real(mask, row, mask_stride):
        of_x = partials + row * partials_stride
        of_h = of_x + 2 * width
        h_affine = affine + 2 * width
        xg_mean, xg_scale = load_statistics(statistics)
        xc_mean, xc_scale = load_statistics(statistics + 2)
        hg_mean, hg_scale = load_statistics(statistics + 4)
        hc_mean, hc_scale = load_statistics(statistics + 6)
        for first in range(0, hidden, U):
            unit = first + tl.arange(0, U)[None, :]
            here = unit < hidden
            u = hidden + unit
            c = both + unit
            reset = tl.load(gates + unit, here)
            update = tl.load(gates + u, here)
            candidate = tl.load(gates + c, here)
            gradient = tl.load(dh + unit, here)
            if dout is not None:
                gradient += tl.load(dout + unit, here)
            tl.store(dh + unit, gradient * update, here)
            d_update = gradient * (tl.load(h + unit, here) - candidate) * update * (1 - update)
            d_candidate = gradient * (1 - update) * (1 - candidate * candidate)
            of_state = summand(ah, h_affine, width, hc_mean, hc_scale, c, here)
            d_reset = d_candidate * of_state * reset * (1 - reset)
            tl.store(dax + unit, d_reset, here)
            tl.store(dax + u, d_update, here)
            tl.store(dax + c, d_candidate, here)
            tl.store(dah + unit, d_reset, here)
            tl.store(dah + u, d_update, here)
            tl.store(dah + c, d_candidate * reset, here)
        to_input(dax, ax, affine, of_x, width, xg_mean, xg_scale, both, k_gates, KIND, INSIDE, EPS, U)
        to_input(dah, ah, h_affine, of_h, width, hg_mean, hg_scale, both, k_gates, KIND, INSIDE, EPS, U)
        ax += both
        ah += both
        dax += both
        dah += both
        of_x += both
        of_h += both
        affine += both
        h_affine += both
        to_input(dax, ax, affine, of_x, width, xc_mean, xc_scale, hidden, k_candidate, KIND, INSIDE, EPS, U)
        to_input(dah, ah, h_affine, of_h, width, hc_mean, hc_scale, hidden, k_candidate, KIND, INSIDE, EPS, U)
    else:
        skip_row(dh, dout, dax, dah, hidden, width, U)


def gru_gates_forward(
    ax: Tensor,
    ah: Tensor,
    h: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    affine: Tensor,
    form: list[int],
    eps: float,
    gates: Tensor,
    statistics: Tensor,
    out: Tensor,
) -> None:
    """``[r, u] = sigmoid(N(ax) + N(ah))``; ``c = tanh(N(ax) + r * N(ah))``; ``out = u * h + (1 - u) * c``.

    N norms the first 2H units jointly and the last H apart. Rows that are not real keep h; their gates are not written.

    Args:
        ax, ah: summed inputs of input and state, ``(B, 3H)``; ``bias``, ``(3H,)``, is first added to ``ah``, in place.
        h: the state, ``(B, H)``.
        affine: ``(2, 2, 3H)``: of input and state, gain and shift.
        form: kind, units in the statistic of the gates and of the candidate, whether eps lies inside the root.
        gates: written, ``(B, 3H)``: r, u, c.
        statistics: written, ``(B, 8)``: of gates and candidate of the input, then of the state.
        out: written, ``(B, H)``.
    """
    kind, k_gates, k_candidate, inside = form
    tensors = (ax, ah, h, mask, bias, affine, gates, statistics, out)
    apart = strides(ax, ah, h, mask, gates, statistics, out)
    sizes = (h.shape[1], k_gates, k_candidate, kind, bool(inside), eps)
    _forward[(h.shape[0],)](*tensors, *apart, *sizes, **tile(h.shape[1]))


def gru_gates_backward(
    dout: Tensor | None,
    dh: Tensor,
    ax: Tensor,
    ah: Tensor,
    h: Tensor,
    gates: Tensor,
    statistics: Tensor,
    mask: Tensor | None,
    affine: Tensor,
    form: list[int],
    eps: float,
    dax: Tensor,
    dah: Tensor,
    partials: Tensor,
) -> None:
    """Gradients of :func:`gru_gates_forward`.

    Args:
        dout: the gradient of this step's output, ``(B, H)``.
        dh: ``(B, H)``: in, what later steps send to the output; out, what goes straight to h.
        ah: with its bias.
        dax, dah: written, ``(B, 3H)``; 0 where a row is not real.
        partials: added to, ``(B, 2, 2, 3H)``: each row's part of the gradient of affine.
    """
    kind, k_gates, k_candidate, inside = form
    tensors = (dout, dh, ax, ah, h, gates, statistics, mask, affine, dax, dah, partials)
    apart = strides(dout, dh, ax, ah, h, gates, statistics, mask, dax, dah, partials)
    sizes = (h.shape[1], k_gates, k_candidate, kind, bool(inside), eps)
    _backward[(h.shape[0],)](*tensors, *apart, *sizes, **tile(h.shape[1]))
