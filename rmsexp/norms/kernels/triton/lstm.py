"""One time step of the normalised LSTM, after its matrix products, as Triton kernels.

For shapes and layouts see :mod:`rmsexp.norms.kernels.triton.steps`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl
from torch import Tensor

from rmsexp.norms.kernels.triton.checks import check_contiguous, check_form, check_mask, check_rows
from rmsexp.norms.kernels.triton.rows import (
    load_statistics,
    norm_backward,
    norm_output,
    row_statistics,
    row_strides,
    save_statistics,
    tanh,
)
from rmsexp.norms.kernels.triton.steps import not_padding, padding_row_backward, size_arguments

# Numbers of a step's norms, in the order of their statistics: the norms of ax, of ah, and of the new cell.
X, H, CELL = (tl.constexpr(norm) for norm in range(3))


@triton.jit
def _forward(
    ax,  # (B, 4H): summed inputs W x
    ah,  # (B, 4H): summed inputs U h
    h,  # (B, H): previous hidden state
    c,  # (B, H): previous cell
    mask,  # (B,) or None
    affine,  # (2, 2, 4H): gain and shift for ax, gain and shift for ah
    cell_affine,  # (2, H): gain and shift of the new cell
    gates,  # (B, 5H), written: input gate, forget gate, output gate, candidate, tanh(N(c'))
    statistics,  # (B, 3, 2), written: mean and scale of each norm
    out_h,  # (B, H), written: new hidden state
    out_c,  # (B, H), written: new cell c'
    ax_stride,
    ah_stride,
    h_stride,
    c_stride,
    mask_stride,
    gates_stride,
    statistics_stride,
    out_h_stride,
    out_c_stride,
    hidden,  # H
    k_gates,  # number of the 4H units that enter the statistics of ax and ah
    k_cell,  # number of the H units that enter the statistic of the cell
    KIND: tl.constexpr,
    EPS_INSIDE: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    DTYPE: tl.constexpr = ax.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    units = tl.arange(0, BLOCK_N)[None, :]
    ax += row * ax_stride
    ah += row * ah_stride
    h += row * h_stride
    c += row * c_stride
    gates += row * gates_stride
    statistics += row * statistics_stride
    out_h += row * out_h_stride
    out_c += row * out_c_stride
    width = 4 * hidden
    x_mean, x_scale = row_statistics(ax, True, 1, width, k_gates, KIND, EPS_INSIDE, EPS, DTYPE, 1, BLOCK_N)
    h_mean, h_scale = row_statistics(ah, True, 1, width, k_gates, KIND, EPS_INSIDE, EPS, DTYPE, 1, BLOCK_N)
    save_statistics(statistics, X, x_mean, x_scale)
    save_statistics(statistics, H, h_mean, h_scale)
    h_affine = affine + 2 * width
    if not_padding(mask, row, mask_stride):
        for start in range(0, hidden, BLOCK_N):
            unit = start + units
            in_row = unit < hidden
            forget_unit = hidden + unit
            output_unit = 2 * hidden + unit
            candidate_unit = 3 * hidden + unit
            norm_x = norm_output(ax, affine, width, x_mean, x_scale, unit, in_row)
            input_gate = tl.sigmoid(norm_x + norm_output(ah, h_affine, width, h_mean, h_scale, unit, in_row))
            norm_x = norm_output(ax, affine, width, x_mean, x_scale, forget_unit, in_row)
            forget_gate = tl.sigmoid(norm_x + norm_output(ah, h_affine, width, h_mean, h_scale, forget_unit, in_row))
            norm_x = norm_output(ax, affine, width, x_mean, x_scale, output_unit, in_row)
            output_gate = tl.sigmoid(norm_x + norm_output(ah, h_affine, width, h_mean, h_scale, output_unit, in_row))
            norm_x = norm_output(ax, affine, width, x_mean, x_scale, candidate_unit, in_row)
            candidate = tanh(norm_x + norm_output(ah, h_affine, width, h_mean, h_scale, candidate_unit, in_row))
            tl.store(gates + unit, input_gate, in_row)
            tl.store(gates + forget_unit, forget_gate, in_row)
            tl.store(gates + output_unit, output_gate, in_row)
            tl.store(gates + candidate_unit, candidate, in_row)
            tl.store(out_c + unit, forget_gate * tl.load(c + unit, in_row) + input_gate * candidate, in_row)
        tl.debug_barrier()
        c_mean, c_scale = row_statistics(out_c, True, 1, hidden, k_cell, KIND, EPS_INSIDE, EPS, DTYPE, 1, BLOCK_N)
        save_statistics(statistics, CELL, c_mean, c_scale)
        for start in range(0, hidden, BLOCK_N):
            unit = start + units
            in_row = unit < hidden
            cell_tanh = tanh(norm_output(out_c, cell_affine, hidden, c_mean, c_scale, unit, in_row))
            tl.store(gates + 4 * hidden + unit, cell_tanh, in_row)
            tl.store(out_h + unit, tl.load(gates + 2 * hidden + unit, in_row) * cell_tanh, in_row)
    else:
        for start in range(0, hidden, BLOCK_N):
            unit = start + units
            in_row = unit < hidden
            tl.store(out_c + unit, tl.load(c + unit, in_row), in_row)
            tl.store(out_h + unit, tl.load(h + unit, in_row), in_row)


@triton.jit
def _backward(
    dout,  # (B, H): gradient of this step's output, or None
    dh,  # (B, H), on entry: gradient of the new hidden state from later steps; on return: of h, except through ah
    dc,  # (B, H), on entry: gradient of the new cell from later steps; on return: gradient of c
    ax,  # (B, 4H): summed inputs W x
    ah,  # (B, 4H): summed inputs U h
    c,  # (B, H): previous cell
    out_c,  # (B, H): new cell c'
    gates,  # (B, 5H): input gate, forget gate, output gate, candidate, tanh(N(c'))
    statistics,  # (B, 3, 2): mean and scale of each norm
    mask,  # (B,) or None
    affine,  # (2, 2, 4H): gain and shift for ax, gain and shift for ah
    cell_affine,  # (2, H): gain and shift of the cell
    dax,  # (B, 4H), written: gradient of ax
    dah,  # (B, 4H), written: gradient of ah
    partials,  # (B, 2, 2, 4H), accumulated in place: gradient of affine for each row of the batch
    cell_partials,  # (B, 2, H), accumulated in place: gradient of cell_affine for each row of the batch
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
    hidden,  # H
    k_gates,  # number of the 4H units that enter the statistics of ax and ah
    k_cell,  # number of the H units that enter the statistic of the cell
    KIND: tl.constexpr,
    EPS_INSIDE: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    units = tl.arange(0, BLOCK_N)[None, :]
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
    if not_padding(mask, row, mask_stride):
        x_partials = partials + row * partials_stride
        h_partials = x_partials + 2 * width
        c_partials = cell_partials + row * cell_partials_stride
        h_affine = affine + 2 * width
        x_mean, x_scale = load_statistics(statistics, X)
        h_mean, h_scale = load_statistics(statistics, H)
        c_mean, c_scale = load_statistics(statistics, CELL)
        # With i, f, o, g the gates, t = tanh(N(c')) and d the gradient of h' = o * t, the gradient of N(c') is
        # d * o * (1 - t^2). dax holds this gradient until that of c' has been computed.
        for start in range(0, hidden, BLOCK_N):
            unit = start + units
            in_row = unit < hidden
            d = tl.load(dh + unit, in_row)
            if dout is not None:
                d += tl.load(dout + unit, in_row)
                tl.store(dh + unit, d, in_row)
            cell_tanh = tl.load(gates + 4 * hidden + unit, in_row)
            output_gate = tl.load(gates + 2 * hidden + unit, in_row)
            tl.store(dax + unit, d * output_gate * (1 - cell_tanh * cell_tanh), in_row)
        norm_backward(
            dax, out_c, cell_affine, c_partials, hidden, c_mean, c_scale, hidden, k_cell, KIND, EPS_INSIDE, EPS, BLOCK_N
        )
        tl.debug_barrier()
        # With dc' the gradient of c' = f * c + i * g, the gradients with respect to these are:
        #   c:                        dc' * f
        #   i before its sigmoid:     dc' * g * i * (1 - i)
        #   f before its sigmoid:     dc' * c * f * (1 - f)
        #   o before its sigmoid:     d * t * o * (1 - o)
        #   g before its tanh:        dc' * i * (1 - g^2)
        for start in range(0, hidden, BLOCK_N):
            unit = start + units
            in_row = unit < hidden
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
        norm_backward(
            dax, ax, affine, x_partials, width, x_mean, x_scale, width, k_gates, KIND, EPS_INSIDE, EPS, BLOCK_N
        )
        norm_backward(
            dah, ah, h_affine, h_partials, width, h_mean, h_scale, width, k_gates, KIND, EPS_INSIDE, EPS, BLOCK_N
        )
        for start in range(0, hidden, BLOCK_N):
            unit = start + units
            tl.store(dh + unit, tl.zeros([1, BLOCK_N], dh.dtype.element_ty), unit < hidden)
    else:
        padding_row_backward(dh, dout, dax, dah, hidden, width, BLOCK_N)


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
    """Compute an LSTM's new state from its summed inputs (Ba et al. 2016, Eqs. 20 to 22).

    ``[i, f, o, g] = N(ax) + N(ah)``; ``c' = sigmoid(f) * c + sigmoid(i) * tanh(g)``; ``h' = sigmoid(o) * tanh(N(c'))``.

    A padding row keeps its state; its gates and the statistics of its cell are not written.

    Args:
        ax: Summed inputs from the input, ``(B, 4H)``, in the order i, f, o, g.
        ah: Summed inputs from the hidden state, ``(B, 4H)``, in the same order.
        h: Previous hidden state, ``(B, H)``.
        c: Previous cell, ``(B, H)``.
        mask: ``(B,)``, true where a row is not padding; None for no padding.
        affine: ``(2, 2, 4H)``: gain and shift for ``ax``, gain and shift for ``ah``.
        cell_affine: ``(2, H)``: gain and shift of the new cell.
        form: Kind of norm, number of units in the statistics of ``ax`` and ``ah``, number of units in the statistic of
            the cell, and 1 if eps is inside the root, otherwise 0.
        eps: Added to the statistic.
        gates: ``(B, 5H)``, written: i, f, o, g and tanh(N(c')), the first four after their nonlinearities.
        statistics: ``(B, 6)``, written: mean and scale of ``ax``, ``ah`` and the new cell.
        out_h: New hidden state, ``(B, H)``, written.
        out_c: New cell, ``(B, H)``, written.
    """
    _check_arguments(ax, ah, c, out_c, gates, statistics, mask, affine, cell_affine, form)
    check_rows(c, h=(h, tuple(c.shape)), out_h=(out_h, tuple(c.shape)))
    strides = row_strides(ax=ax, ah=ah, h=h, c=c, mask=mask, gates=gates, statistics=statistics)
    _forward[(h.shape[0],)](
        *(ax, ah, h, c, mask, affine, cell_affine, gates, statistics, out_h, out_c),
        **strides,
        **row_strides(out_h=out_h, out_c=out_c),
        **_norm_arguments(form, eps),
        **size_arguments(h.shape[1]),
    )


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
    """Compute the gradients of the inputs of :func:`lstm_gates_forward`.

    Args:
        dout: Gradient of this step's output, ``(B, H)``, or None for 0.
        dh: ``(B, H)``. On entry: the gradient that later steps send to the new hidden state. On return: the gradient of
            ``h``, except through ``ah``; it is 0 unless the row is padding.
        dc: ``(B, H)``. On entry: the gradient that later steps send to the new cell. On return: the gradient of ``c``.
        out_c: The new cell.
        dax: Gradient of ``ax``, ``(B, 4H)``, written; 0 where a row is padding.
        dah: Gradient of ``ah``, ``(B, 4H)``, written; 0 where a row is padding.
        partials: ``(B, 2, 2, 4H)``, accumulated in place: gradient of ``affine`` for each row of the batch.
        cell_partials: ``(B, 2, H)``, accumulated in place: gradient of ``cell_affine`` for each row of the batch.

    For the other arguments see :func:`lstm_gates_forward`.
    """
    _check_arguments(ax, ah, c, out_c, gates, statistics, mask, affine, cell_affine, form)
    (rows, hidden), width = c.shape, 4 * c.shape[1]
    check_rows(c, dout=(dout, (rows, hidden)), dh=(dh, (rows, hidden)), dc=(dc, (rows, hidden)))
    check_rows(c, dax=(dax, (rows, width)), dah=(dah, (rows, width)))
    check_rows(c, partials=(partials, (rows, 2, 2, width)), cell_partials=(cell_partials, (rows, 2, hidden)))
    strides = row_strides(dout=dout, dh=dh, dc=dc, ax=ax, ah=ah, c=c, out_c=out_c, gates=gates, statistics=statistics)
    _backward[(c.shape[0],)](
        *(dout, dh, dc, ax, ah, c, out_c, gates, statistics, mask, affine, cell_affine),
        *(dax, dah, partials, cell_partials),
        **strides,
        **row_strides(mask=mask, dax=dax, dah=dah, partials=partials, cell_partials=cell_partials),
        **_norm_arguments(form, eps),
        **size_arguments(c.shape[1]),
    )


def _check_arguments(
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
) -> None:
    """Check the arguments that both operators take. Raises: ValueError."""
    rows, hidden, width = c.shape[0], c.shape[-1], 4 * c.shape[-1]
    kind, k_gates, k_cell, inside = form
    check_form(kind, width, k_gates, bool(inside))
    check_form(kind, hidden, k_cell, bool(inside))
    check_rows(c, c=(c, (rows, hidden)), ax=(ax, (rows, width)), ah=(ah, (rows, width)), out_c=(out_c, (rows, hidden)))
    check_rows(c, gates=(gates, (rows, 5 * hidden)), statistics=(statistics, (rows, 6)))
    check_contiguous(c, affine=(affine, (2, 2, width)), cell_affine=(cell_affine, (2, hidden)))
    check_mask(mask, (rows,), c.device)


def _norm_arguments(form: list[int], eps: float) -> dict[str, float]:
    kind, k_gates, k_cell, inside = form
    return {"k_gates": k_gates, "k_cell": k_cell, "KIND": kind, "EPS_INSIDE": bool(inside), "EPS": eps}
