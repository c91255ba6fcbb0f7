"""One time step of the normalised GRU and LSTM, after its matrix products, as Triton kernels.

The formulas, and the operators' arguments, are in ``cpp/gru.h`` and ``cpp/lstm.h``. Shapes: B rows of the batch, one
per program; H hidden units. Matrices are float32 or float64. Their last axis is contiguous; their rows may have any
stride.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import Any

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

# Numbers of a step's norms, in the order of their statistics. In a GRU, parts of ax and of ah have norms of their own.
X_GATES, X_CANDIDATE, H_GATES, H_CANDIDATE = (tl.constexpr(norm) for norm in range(4))
X, H, CELL = (tl.constexpr(norm) for norm in range(3))  # the same of an LSTM


@triton.jit
def _summed(ax, ah, affine, width, x_mean, x_scale, h_mean, h_scale, unit, in_row):
    """Return ``N(ax) + N(ah)`` for some units."""
    of_x = norm_output(ax, affine, width, x_mean, x_scale, unit, in_row)
    return of_x + norm_output(ah, affine + 2 * width, width, h_mean, h_scale, unit, in_row)


@triton.jit
def _forward(
    ax,  # (B, width): summed inputs from the input; width is 3H for a GRU, 4H for an LSTM
    ah,  # (B, width): summed inputs from the state; the bias is added in place
    h,  # (B, H): previous state
    c,  # (B, H): previous cell of an LSTM; None for a GRU
    mask,  # (B,), true where a row is not padding; or None
    bias,  # (width,) or None
    affine,  # (2, 2, width): gain and shift for ax, gain and shift for ah
    cell_affine,  # (2, H): gain and shift of the new cell of an LSTM; None for a GRU
    gates,  # (B, width), written, with tanh(N(out_c)) behind them for an LSTM
    statistics,  # (B, norms, 2), written: mean and scale of each norm
    out,  # (B, H), written: new state
    out_c,  # (B, H), written: new cell of an LSTM; None for a GRU
    ax_stride,
    ah_stride,
    h_stride,
    c_stride,
    mask_stride,
    gates_stride,
    statistics_stride,
    out_stride,
    out_c_stride,
    hidden,  # H
    k_gates,  # number of units that enter the statistics of the gates
    k_inner,  # number of units that enter the statistic of the candidate or of the cell
    NORM: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    is_real = True if mask is None else tl.load(mask + row * mask_stride)
    ax += row * ax_stride
    ah += row * ah_stride
    h += row * h_stride
    gates += row * gates_stride
    statistics += row * statistics_stride
    out += row * out_stride
    if bias is not None:
        for start in range(0, 3 * hidden, BLOCK_N):
            unit, in_row = indices(start, 3 * hidden, BLOCK_N)
            tl.store(ah + unit, tl.load(ah + unit, in_row) + tl.load(bias + unit, in_row), in_row)
        tl.debug_barrier()
    if c is None:  # a GRU
        both, width = 2 * hidden, 3 * hidden
        xg_mean, xg_scale = saved_statistics(ax, statistics, X_GATES, both, k_gates, NORM, BLOCK_N)
        xc_mean, xc_scale = saved_statistics(ax + both, statistics, X_CANDIDATE, hidden, k_inner, NORM, BLOCK_N)
        hg_mean, hg_scale = saved_statistics(ah, statistics, H_GATES, both, k_gates, NORM, BLOCK_N)
        hc_mean, hc_scale = saved_statistics(ah + both, statistics, H_CANDIDATE, hidden, k_inner, NORM, BLOCK_N)
        for start in range(0, hidden, BLOCK_N):
            unit, in_row = indices(start, hidden, BLOCK_N)
            state = tl.load(h + unit, in_row)
            if is_real:
                of_update, of_candidate = hidden + unit, both + unit
                reset = tl.sigmoid(_summed(ax, ah, affine, width, xg_mean, xg_scale, hg_mean, hg_scale, unit, in_row))
                update = tl.sigmoid(
                    _summed(ax, ah, affine, width, xg_mean, xg_scale, hg_mean, hg_scale, of_update, in_row)
                )
                norm_x = norm_output(ax, affine, width, xc_mean, xc_scale, of_candidate, in_row)
                norm_h = norm_output(ah, affine + 2 * width, width, hc_mean, hc_scale, of_candidate, in_row)
                candidate = tanh(norm_x + reset * norm_h)
                tl.store(gates + unit, reset, in_row)
                tl.store(gates + of_update, update, in_row)
                tl.store(gates + of_candidate, candidate, in_row)
                state = update * state + (1 - update) * candidate
            tl.store(out + unit, state, in_row)
    else:
        c += row * c_stride
        out_c += row * out_c_stride
        width = 4 * hidden
        x_mean, x_scale = saved_statistics(ax, statistics, X, width, k_gates, NORM, BLOCK_N)
        h_mean, h_scale = saved_statistics(ah, statistics, H, width, k_gates, NORM, BLOCK_N)
        if is_real:
            for start in range(0, hidden, BLOCK_N):
                unit, in_row = indices(start, hidden, BLOCK_N)
                of_forget, of_output, of_candidate = hidden + unit, 2 * hidden + unit, 3 * hidden + unit
                input_gate = tl.sigmoid(_summed(ax, ah, affine, width, x_mean, x_scale, h_mean, h_scale, unit, in_row))
                forget_gate = tl.sigmoid(
                    _summed(ax, ah, affine, width, x_mean, x_scale, h_mean, h_scale, of_forget, in_row)
                )
                output_gate = tl.sigmoid(
                    _summed(ax, ah, affine, width, x_mean, x_scale, h_mean, h_scale, of_output, in_row)
                )
                candidate = tanh(_summed(ax, ah, affine, width, x_mean, x_scale, h_mean, h_scale, of_candidate, in_row))
                tl.store(gates + unit, input_gate, in_row)
                tl.store(gates + of_forget, forget_gate, in_row)
                tl.store(gates + of_output, output_gate, in_row)
                tl.store(gates + of_candidate, candidate, in_row)
                tl.store(out_c + unit, forget_gate * tl.load(c + unit, in_row) + input_gate * candidate, in_row)
            tl.debug_barrier()
            c_mean, c_scale = saved_statistics(out_c, statistics, CELL, hidden, k_inner, NORM, BLOCK_N)
            for start in range(0, hidden, BLOCK_N):
                unit, in_row = indices(start, hidden, BLOCK_N)
                cell_tanh = tanh(norm_output(out_c, cell_affine, hidden, c_mean, c_scale, unit, in_row))
                tl.store(gates + 4 * hidden + unit, cell_tanh, in_row)
                tl.store(out + unit, tl.load(gates + 2 * hidden + unit, in_row) * cell_tanh, in_row)
        else:
            for start in range(0, hidden, BLOCK_N):
                unit, in_row = indices(start, hidden, BLOCK_N)
                tl.store(out_c + unit, tl.load(c + unit, in_row), in_row)
                tl.store(out + unit, tl.load(h + unit, in_row), in_row)


@triton.jit
def _backward(
    dout,  # (B, H): gradient of this step's output, or None
    dh,  # (B, H), on entry: gradient of the new state from later steps; on return: of h, except through ah
    dc,  # (B, H), on entry: gradient of the new cell from later steps; on return: of c; None for a GRU
    ax,
    ah,  # with the bias
    h,  # None for an LSTM
    c,
    out_c,
    gates,
    statistics,
    mask,
    affine,
    cell_affine,
    dax,  # (B, width), written: gradient of ax
    dah,  # (B, width), written: gradient of ah
    partials,  # (B, 2, 2, width), accumulated in place: gradient of affine for each row of the batch
    cell_partials,  # (B, 2, H), accumulated in place: the same of cell_affine; None for a GRU
    dout_stride,
    dh_stride,
    dc_stride,
    ax_stride,
    ah_stride,
    h_stride,
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
    k_inner,
    NORM: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute the gradients of the inputs of :func:`_forward`, whose arguments have the same names here."""
    row = tl.program_id(0).to(tl.int64)
    if dout is not None:
        dout += row * dout_stride
    dh += row * dh_stride
    ax += row * ax_stride
    ah += row * ah_stride
    gates += row * gates_stride
    statistics += row * statistics_stride
    dax += row * dax_stride
    dah += row * dah_stride
    partials += row * partials_stride
    if True if mask is None else tl.load(mask + row * mask_stride):
        if c is None:  # a GRU
            h += row * h_stride
            both, width = 2 * hidden, 3 * hidden
            hc_mean, hc_scale = load_statistics(statistics, H_CANDIDATE)
            h_affine, h_partials = affine + 2 * width, partials + 2 * width
            for start in range(0, hidden, BLOCK_N):
                unit, in_row = indices(start, hidden, BLOCK_N)
                of_update, of_candidate = hidden + unit, both + unit
                reset = tl.load(gates + unit, in_row)
                update = tl.load(gates + of_update, in_row)
                candidate = tl.load(gates + of_candidate, in_row)
                d = tl.load(dh + unit, in_row)
                if dout is not None:
                    d += tl.load(dout + unit, in_row)
                tl.store(dh + unit, d * update, in_row)
                d_update = d * (tl.load(h + unit, in_row) - candidate) * update * (1 - update)
                d_candidate = d * (1 - update) * (1 - candidate * candidate)
                norm_h = norm_output(ah, h_affine, width, hc_mean, hc_scale, of_candidate, in_row)
                d_reset = d_candidate * norm_h * reset * (1 - reset)
                tl.store(dax + unit, d_reset, in_row)
                tl.store(dax + of_update, d_update, in_row)
                tl.store(dax + of_candidate, d_candidate, in_row)
                tl.store(dah + unit, d_reset, in_row)
                tl.store(dah + of_update, d_update, in_row)
                tl.store(dah + of_candidate, d_candidate * reset, in_row)
            norm_backward(dax, ax, affine, partials, width, statistics, X_GATES, 0, both, k_gates, NORM, BLOCK_N)
            norm_backward(dah, ah, h_affine, h_partials, width, statistics, H_GATES, 0, both, k_gates, NORM, BLOCK_N)
            norm_backward(
                dax, ax, affine, partials, width, statistics, X_CANDIDATE, both, hidden, k_inner, NORM, BLOCK_N
            )
            norm_backward(
                dah, ah, h_affine, h_partials, width, statistics, H_CANDIDATE, both, hidden, k_inner, NORM, BLOCK_N
            )
        else:
            dc += row * dc_stride
            c += row * c_stride
            out_c += row * out_c_stride
            cell_partials += row * cell_partials_stride
            width = 4 * hidden
            h_affine, h_partials = affine + 2 * width, partials + 2 * width
            # dax holds the gradient of N(out_c) until that of out_c has been computed
            for start in range(0, hidden, BLOCK_N):
                unit, in_row = indices(start, hidden, BLOCK_N)
                d = tl.load(dh + unit, in_row)
                if dout is not None:
                    d += tl.load(dout + unit, in_row)
                    tl.store(dh + unit, d, in_row)
                cell_tanh = tl.load(gates + 4 * hidden + unit, in_row)
                output_gate = tl.load(gates + 2 * hidden + unit, in_row)
                tl.store(dax + unit, d * output_gate * (1 - cell_tanh * cell_tanh), in_row)
            norm_backward(
                dax, out_c, cell_affine, cell_partials, hidden, statistics, CELL, 0, hidden, k_inner, NORM, BLOCK_N
            )
            tl.debug_barrier()
            for start in range(0, hidden, BLOCK_N):
                unit, in_row = indices(start, hidden, BLOCK_N)
                d = tl.load(dh + unit, in_row)
                d_cell = tl.load(dc + unit, in_row) + tl.load(dax + unit, in_row)
                input_gate = tl.load(gates + unit, in_row)
                forget_gate = tl.load(gates + hidden + unit, in_row)
                output_gate = tl.load(gates + 2 * hidden + unit, in_row)
                candidate = tl.load(gates + 3 * hidden + unit, in_row)
                cell_tanh = tl.load(gates + 4 * hidden + unit, in_row)
                tl.store(dc + unit, d_cell * forget_gate, in_row)
                d_input = d_cell * candidate * input_gate * (1 - input_gate)
                d_forget = d_cell * tl.load(c + unit, in_row) * forget_gate * (1 - forget_gate)
                d_output = d * cell_tanh * output_gate * (1 - output_gate)
                d_candidate = d_cell * input_gate * (1 - candidate * candidate)
                tl.store(dax + unit, d_input, in_row)
                tl.store(dax + hidden + unit, d_forget, in_row)
                tl.store(dax + 2 * hidden + unit, d_output, in_row)
                tl.store(dax + 3 * hidden + unit, d_candidate, in_row)
                tl.store(dah + unit, d_input, in_row)
                tl.store(dah + hidden + unit, d_forget, in_row)
                tl.store(dah + 2 * hidden + unit, d_output, in_row)
                tl.store(dah + 3 * hidden + unit, d_candidate, in_row)
                tl.store(dh + unit, tl.zeros([1, BLOCK_N], dh.dtype.element_ty), in_row)
            norm_backward(dax, ax, affine, partials, width, statistics, X, 0, width, k_gates, NORM, BLOCK_N)
            norm_backward(dah, ah, h_affine, h_partials, width, statistics, H, 0, width, k_gates, NORM, BLOCK_N)
    else:  # padding, whose output is the previous state
        if dout is not None:
            for start in range(0, hidden, BLOCK_N):
                unit, in_row = indices(start, hidden, BLOCK_N)
                tl.store(dh + unit, tl.load(dh + unit, in_row) + tl.load(dout + unit, in_row), in_row)
        width = (3 if c is None else 4) * hidden
        for start in range(0, width, BLOCK_N):
            unit, in_row = indices(start, width, BLOCK_N)
            tl.store(dax + unit, tl.zeros([1, BLOCK_N], dax.dtype.element_ty), in_row)
            tl.store(dah + unit, tl.zeros([1, BLOCK_N], dah.dtype.element_ty), in_row)


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the kernels' arguments that are neither arguments of the operator nor strides."""
    kind, k_gates, k_inner, inside = arguments["form"]
    hidden = (arguments["h"] if "h" in arguments else arguments["dh"]).shape[1]
    blocks = {"BLOCK_N": min(1024, triton.next_power_of_2(hidden))}
    sizes = {"hidden": hidden, "k_gates": k_gates, "k_inner": k_inner}
    return {**sizes, "NORM": (kind, bool(inside), arguments["eps"]), **blocks}


# A GRU's new state from its summed inputs, an LSTM's new state and cell, and the gradients of their inputs.
gru_gates_forward = RowOperator(_forward, "ax ah h mask bias affine form eps gates statistics out", _options)
gru_gates_backward = RowOperator(
    _backward, "dout dh ax ah h gates statistics mask affine form eps dax dah partials", _options
)
lstm_gates_forward = RowOperator(
    _forward, "ax ah h c mask affine cell_affine form eps gates statistics out out_c", _options
)
lstm_gates_backward = RowOperator(
    _backward,
    "dout dh dc ax ah c out_c gates statistics mask affine cell_affine form eps dax dah partials cell_partials",
    _options,
)
