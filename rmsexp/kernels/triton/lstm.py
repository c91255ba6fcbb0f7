"""One time step of the normalised LSTM behind its matrix products, as Triton kernels: a program a row.

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
    c,
    mask,
    affine,
    cell_affine,
    gates,
    statistics,
    out_h,
    out_c,
    ax_stride,
    ah_stride,
    h_stride,
    c_stride,
    mask_stride,
    gates_stride,
    statistics_stride,
    out_h_stride,
    out_c_stride,
    hidden,
    k_gates,
    k_cell,
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
    c += row * c_stride
    gates += row * gates_stride
    statistics += row * statistics_stride
    out_h += row * out_h_stride
    out_c += row * out_c_stride
    width = 4 * hidden
    x_mean, x_scale = row_statistics(ax, True, 1, width, k_gates, KIND, INSIDE, EPS, W, 1, U)
    h_mean, h_scale = row_statistics(ah, True, 1, width, k_gates, KIND, INSIDE, EPS, W, 1, U)
    save_statistics(statistics, x_mean, x_scale)
    save_statistics(statistics + 2, h_mean, h_scale)
    of_h = affine + 2 * width
    if is_real(mask, row, mask_stride):
        for first in range(0, hidden, U):
            unit = first + units
            here = unit < hidden
            x = summand(ax, affine, width, x_mean, x_scale, unit, here)
            taken = tl.sigmoid(x + summand(ah, of_h, width, h_mean, h_scale, unit, here))
            x = summand(ax, affine, width, x_mean, x_scale, hidden + unit, here)
            kept = tl.sigmoid(x + summand(ah, of_h, width, h_mean, h_scale, hidden + unit, here))
            x = summand(ax, affine, width, x_mean, x_scale, 2 * hidden + unit, here)
            shown = tl.sigmoid(x + summand(ah, of_h, width, h_mean, h_scale, 2 * hidden + unit, here))
            x = summand(ax, affine, width, x_mean, x_scale, 3 * hidden + unit, here)
            value = tanh(x + summand(ah, of_h, width, h_mean, h_scale, 3 * hidden + unit, here))
            tl.store(gates + unit, taken, here)
            tl.store(gates + hidden + unit, kept, here)
            tl.store(gates + 2 * hidden + unit, shown, here)
            tl.store(gates + 3 * hidden + unit, value, here)
            tl.store(out_c + unit, kept * tl.load(c + unit, here) + taken * value, here)
        tl.debug_barrier()
        c_mean, c_scale = row_statistics(out_c, True, 1, hidden, k_cell, KIND, INSIDE, EPS, W, 1, U)
        save_statistics(statistics + 4, c_mean, c_scale)
        for first in range(0, hidden, U):
            unit = first + units
            here = unit < hidden
            seen = tanh(summand(out_c, cell_affine, hidden, c_mean, c_scale, unit, here))
            tl.store(gates + 4 * hidden + unit, seen, here)
            tl.store(out_h + unit, tl.load(gates + 2 * hidden + unit, here) * seen, here)
    else:
        for first in range(0, hidden, U):
            unit = first + units
            here = unit < hidden
            tl.store(out_c + unit, tl.load(c + unit, here), here)
            tl.store(out_h + unit, tl.load(h + unit, here), here)


@triton.jit
def _backward(
    dout,
    dh,
    dc,
    ax,
    ah,
    c,
    out_c,
    gates,
    statistics,
    mask,
    affine,
    cell_affine,
    dax,
    dah,
    partials,
    cell_partials,
    dout_stride,
    dh_stride,
    dc_stride,
    ax_stride,
    ah_stride,
    c_stride,
    out_c_stride,
    gates_stride,
    statistics_stride,
    mask_stride,
    dax_stride,
    dah_stride,
    partials_stride,
    cell_partials_stride,
    hidden,
    k_gates,
    k_cell,
    KIND: tl.constexpr,
    INSIDE: tl.constexpr,
    EPS: tl.constexpr,
    U: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    units = tl.arange(0, U)[None, :]
    if dout is not None:
        dout += row * dout_stride
    dh += row * dh_stride
    dc += row * dc_stride
    ax += row * ax_stride
    ah += row * ah_stride
    c += row * c_stride
    out_c += row * out_c_stride
    gates += row * gates_stride
    statistics += row * statistics_stride
    dax += row * dax_stride
    dah += row * dah_stride
    width = 4 * hidden
    if is_real(mask, row, mask_stride):
        of_x = partials + row * partials_stride
        of_h = of_x + 2 * width
        of_cell = cell_partials + row * cell_partials_stride
        h_affine = affine + 2 * width
        x_mean, x_scale = load_statistics(statistics)
        h_mean, h_scale = load_statistics(statistics + 2)
        c_mean, c_scale = load_statistics(statistics + 4)
        # What reaches the cell through its norm is written to dax, which nothing else fills yet.
        for first in range(0, hidden, U):
            unit = first + units
            here = unit < hidden
            gradient = tl.load(dh + unit, here)
            if dout is not None:
                gradient += tl.load(dout + unit, here)
                tl.store(dh + unit, gradient, here)
            seen = tl.load(gates + 4 * hidden + unit, here)
            tl.store(dax + unit, gradient * tl.load(gates + 2 * hidden + unit, here) * (1 - seen * seen), here)
        to_input(dax, out_c, cell_affine, of_cell, hidden, c_mean, c_scale, hidden, k_cell, KIND, INSIDE, EPS, U)
        tl.debug_barrier()
        for first in range(0, hidden, U):
            unit = first + units
            here = unit < hidden
            gradient = tl.load(dh + unit, here)
            d_cell = tl.load(dc + unit, here) + tl.load(dax + unit, here)
            taken = tl.load(gates + unit, here)
            kept = tl.load(gates + hidden + unit, here)
            shown = tl.load(gates + 2 * hidden + unit, here)
            value = tl.load(gates + 3 * hidden + unit, here)
            seen = tl.load(gates + 4 * hidden + unit, here)
            tl.store(dc + unit, d_cell * kept, here)
            d_taken = d_cell * value * taken * (1 - taken)
            d_kept = d_cell * tl.load(c + unit, here) * kept * (1 - kept)
            d_shown = gradient * seen * shown * (1 - shown)
            d_value = d_cell * taken * (1 - value * value)
            tl.store(dax + unit, d_taken, here)
            tl.store(dax + hidden + unit, d_kept, here)
            tl.store(dax + 2 * hidden + unit, d_shown, here)
            tl.store(dax + 3 * hidden + unit, d_value, here)
            tl.store(dah + unit, d_taken, here)
            tl.store(dah + hidden + unit, d_kept, here)
            tl.store(dah + 2 * hidden + unit, d_shown, here)
            tl.store(dah + 3 * hidden + unit, d_value, here)
        to_input(dax, ax, affine, of_x, width, x_mean, x_scale, width, k_gates, KIND, INSIDE, EPS, U)
        to_input(dah, ah, h_affine, of_h, width, h_mean, h_scale, width, k_gates, KIND, INSIDE, EPS, U)
        for first in range(0, hidden, U):
            unit = first + units
            tl.store(dh + unit, tl.zeros([1, U], dh.dtype.element_ty), unit < hidden)
    else:
        skip_row(dh, dout, dax, dah, hidden, width, U)


def lstm_gates_forward(
    ax: Tensor,
    ah: Tensor,
    h: Tensor,
    c: Tensor,
    mask: Tensor | None,
    affine: Tensor,
    cell_affine: Tensor,
    form: list[int],
    eps: float,
    gates: Tensor,
    statistics: Tensor,
    out_h: Tensor,
    out_c: Tensor,
) -> None:
    """``c' = sigmoid(f) * c + sigmoid(i) * tanh(g)`` and ``h' = sigmoid(o) * tanh(N(c'))``.

    ``[i, f, o, g] = N(ax) + N(ah)`` (Ba et al. 2016, Eqs. 20 to 22). Rows that are not real keep h and c;
    their gates and the statistics of their cells are not written.

    Args:
        ax, ah: summed inputs of input and state, ``(B, 4H)``.
        h, c: the state, ``(B, H)`` each.
        affine: ``(2, 2, 4H)``: of input and state, gain and shift; ``cell_affine``, ``(2, H)``: of the cell.
        form: kind, units in the statistic of the gates and of the cell, whether eps lies inside the root.
        gates: written, ``(B, 5H)``: i, f, o, g and tanh(N(c')), after their nonlinearities.
        statistics: written, ``(B, 6)``: of input, state and cell.
        out_h, out_c: written, ``(B, H)``.
    """
    kind, k_gates, k_cell, inside = form
    tensors = (ax, ah, h, c, mask, affine, cell_affine, gates, statistics, out_h, out_c)
    apart = strides(ax, ah, h, c, mask, gates, statistics, out_h, out_c)
    sizes = (h.shape[1], k_gates, k_cell, kind, bool(inside), eps)
    _forward[(h.shape[0],)](*tensors, *apart, *sizes, **tile(h.shape[1]))


def lstm_gates_backward(
    dout: Tensor | None,
    dh: Tensor,
    dc: Tensor,
    ax: Tensor,
    ah: Tensor,
    c: Tensor,
    out_c: Tensor,
    gates: Tensor,
    statistics: Tensor,
    mask: Tensor | None,
    affine: Tensor,
    cell_affine: Tensor,
    form: list[int],
    eps: float,
    dax: Tensor,
    dah: Tensor,
    partials: Tensor,
    cell_partials: Tensor,
) -> None:
    """Gradients of :func:`lstm_gates_forward`.

    Args:
        dout: the gradient of this step's hidden state, ``(B, H)``.
        dh, dc: ``(B, H)``: in, what later steps send; out, what goes straight to h (0 but where a row is not real)
            and to c.
        dax, dah: written, ``(B, 4H)``; 0 where a row is not real.
        partials, cell_partials: added to, ``(B, 2, 2, 4H)`` and ``(B, 2, H)``: each row's part of the gradients of
            affine and cell_affine.
    """
    kind, k_gates, k_cell, inside = form
    matrices = (dh, dc, ax, ah, c, out_c, gates, statistics)
    written = (dax, dah, partials, cell_partials)
    apart = strides(dout, *matrices, mask, *written)
    sizes = (c.shape[1], k_gates, k_cell, kind, bool(inside), eps)
    tensors = (dout, *matrices, mask, affine, cell_affine, *written)
    _backward[(c.shape[0],)](*tensors, *apart, *sizes, **tile(c.shape[1]))
