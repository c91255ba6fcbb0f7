"""One time step of the normalised GRU, after its matrix products, as Triton kernels.

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

# Numbers of a step's norms, in the order of their statistics. X_ norms are of parts of ax, H_ norms of parts of ah.
X_GATES, X_CANDIDATE, H_GATES, H_CANDIDATE = (tl.constexpr(norm) for norm in range(4))


@triton.jit
def _forward(
    ax,  # (B, 3H): summed inputs W x
    ah,  # (B, 3H): summed inputs U h; the bias is added in place
    h,  # (B, H): previous state
    mask,  # (B,) or None
    bias,  # (3H,) or None
    affine,  # (2, 2, 3H): gain and shift for ax, gain and shift for ah
    gates,  # (B, 3H), written: reset gate, update gate, candidate
    statistics,  # (B, 4, 2), written: mean and scale of each norm
    out,  # (B, H), written: new state
    ax_stride,
    ah_stride,
    h_stride,
    mask_stride,
    gates_stride,
    statistics_stride,
    out_stride,
    hidden,  # H
    k_gates,  # number of the 2H units that enter the statistic of the gates
    k_candidate,  # number of the H units that enter the statistic of the candidate
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
    gates += row * gates_stride
    statistics += row * statistics_stride
    out += row * out_stride
    both_gates = 2 * hidden
    width = 3 * hidden
    if bias is not None:
        for start in range(0, width, BLOCK_N):
            unit = start + units
            in_row = unit < width
            tl.store(ah + unit, tl.load(ah + unit, in_row) + tl.load(bias + unit, in_row), in_row)
        tl.debug_barrier()
    xg_mean, xg_scale = row_statistics(ax, True, 1, both_gates, k_gates, KIND, EPS_INSIDE, EPS, DTYPE, 1, BLOCK_N)
    xc_mean, xc_scale = row_statistics(
        ax + both_gates, True, 1, hidden, k_candidate, KIND, EPS_INSIDE, EPS, DTYPE, 1, BLOCK_N
    )
    hg_mean, hg_scale = row_statistics(ah, True, 1, both_gates, k_gates, KIND, EPS_INSIDE, EPS, DTYPE, 1, BLOCK_N)
    hc_mean, hc_scale = row_statistics(
        ah + both_gates, True, 1, hidden, k_candidate, KIND, EPS_INSIDE, EPS, DTYPE, 1, BLOCK_N
    )
    save_statistics(statistics, X_GATES, xg_mean, xg_scale)
    save_statistics(statistics, X_CANDIDATE, xc_mean, xc_scale)
    save_statistics(statistics, H_GATES, hg_mean, hg_scale)
    save_statistics(statistics, H_CANDIDATE, hc_mean, hc_scale)
    h_affine = affine + 2 * width
    valid = not_padding(mask, row, mask_stride)
    for start in range(0, hidden, BLOCK_N):
        unit = start + units
        in_row = unit < hidden
        state = tl.load(h + unit, in_row)
        if valid:
            update_unit = hidden + unit
            candidate_unit = both_gates + unit
            norm_x = norm_output(ax, affine, width, xg_mean, xg_scale, unit, in_row)
            reset = tl.sigmoid(norm_x + norm_output(ah, h_affine, width, hg_mean, hg_scale, unit, in_row))
            norm_x = norm_output(ax, affine, width, xg_mean, xg_scale, update_unit, in_row)
            update = tl.sigmoid(norm_x + norm_output(ah, h_affine, width, hg_mean, hg_scale, update_unit, in_row))
            norm_x = norm_output(ax, affine, width, xc_mean, xc_scale, candidate_unit, in_row)
            norm_h = norm_output(ah, h_affine, width, hc_mean, hc_scale, candidate_unit, in_row)
            candidate = tanh(norm_x + reset * norm_h)
            tl.store(gates + unit, reset, in_row)
            tl.store(gates + update_unit, update, in_row)
            tl.store(gates + candidate_unit, candidate, in_row)
            state = update * state + (1 - update) * candidate
        tl.store(out + unit, state, in_row)


@triton.jit
def _backward(
    dout,  # (B, H): gradient of this step's output, or None
    dh,  # (B, H), on entry: gradient of the new state from later steps; on return: gradient of h, except through ah
    ax,  # (B, 3H): summed inputs W x
    ah,  # (B, 3H): summed inputs U h, with the bias
    h,  # (B, H): previous state
    gates,  # (B, 3H): reset gate, update gate, candidate
    statistics,  # (B, 4, 2): mean and scale of each norm
    mask,  # (B,) or None
    affine,  # (2, 2, 3H): gain and shift for ax, gain and shift for ah
    dax,  # (B, 3H), written: gradient of ax
    dah,  # (B, 3H), written: gradient of ah
    partials,  # (B, 2, 2, 3H), accumulated in place: gradient of affine for each row of the batch
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
    hidden,  # H
    k_gates,  # number of the 2H units that enter the statistic of the gates
    k_candidate,  # number of the H units that enter the statistic of the candidate
    KIND: tl.constexpr,
    EPS_INSIDE: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK_N: tl.constexpr,
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
    both_gates = 2 * hidden
    width = 3 * hidden
    if not_padding(mask, row, mask_stride):
        x_partials = partials + row * partials_stride
        h_partials = x_partials + 2 * width
        h_affine = affine + 2 * width
        xg_mean, xg_scale = load_statistics(statistics, X_GATES)
        xc_mean, xc_scale = load_statistics(statistics, X_CANDIDATE)
        hg_mean, hg_scale = load_statistics(statistics, H_GATES)
        hc_mean, hc_scale = load_statistics(statistics, H_CANDIDATE)
        # With r, u, c the gates and d the gradient of h' = u * h + (1 - u) * c, the gradients of the following are:
        #   h, directly:             d * u
        #   u before its sigmoid:    d * (h - c) * u * (1 - u)
        #   c before its tanh:       dc = d * (1 - u) * (1 - c^2)
        #   r before its sigmoid:    dc * N(ah) * r * (1 - r)
        #   N(ah) of the candidate:  dc * r
        for start in range(0, hidden, BLOCK_N):
            unit = start + tl.arange(0, BLOCK_N)[None, :]
            in_row = unit < hidden
            update_unit = hidden + unit
            candidate_unit = both_gates + unit
            reset = tl.load(gates + unit, in_row)
            update = tl.load(gates + update_unit, in_row)
            candidate = tl.load(gates + candidate_unit, in_row)
            d = tl.load(dh + unit, in_row)
            if dout is not None:
                d += tl.load(dout + unit, in_row)
            tl.store(dh + unit, d * update, in_row)
            d_update = d * (tl.load(h + unit, in_row) - candidate) * update * (1 - update)
            d_candidate = d * (1 - update) * (1 - candidate * candidate)
            norm_h = norm_output(ah, h_affine, width, hc_mean, hc_scale, candidate_unit, in_row)
            d_reset = d_candidate * norm_h * reset * (1 - reset)
            tl.store(dax + unit, d_reset, in_row)
            tl.store(dax + update_unit, d_update, in_row)
            tl.store(dax + candidate_unit, d_candidate, in_row)
            tl.store(dah + unit, d_reset, in_row)
            tl.store(dah + update_unit, d_update, in_row)
            tl.store(dah + candidate_unit, d_candidate * reset, in_row)
        # dax and dah hold the gradients of the norms' outputs; norm_backward replaces them by those of ax and ah.
        norm_backward(
            dax, ax, affine, x_partials, width, xg_mean, xg_scale, both_gates, k_gates, KIND, EPS_INSIDE, EPS, BLOCK_N
        )
        norm_backward(
            dah, ah, h_affine, h_partials, width, hg_mean, hg_scale, both_gates, k_gates, KIND, EPS_INSIDE, EPS, BLOCK_N
        )
        ax += both_gates
        ah += both_gates
        dax += both_gates
        dah += both_gates
        x_partials += both_gates
        h_partials += both_gates
        affine += both_gates
        h_affine += both_gates
        norm_backward(
            dax, ax, affine, x_partials, width, xc_mean, xc_scale, hidden, k_candidate, KIND, EPS_INSIDE, EPS, BLOCK_N
        )
        norm_backward(
            dah, ah, h_affine, h_partials, width, hc_mean, hc_scale, hidden, k_candidate, KIND, EPS_INSIDE, EPS, BLOCK_N
        )
    else:
        padding_row_backward(dh, dout, dax, dah, hidden, width, BLOCK_N)


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
    """Compute a GRU's new state from its summed inputs.

    ``[r, u] = sigmoid(N(ax) + N(ah))``; ``c = tanh(N(ax) + r * N(ah))``; ``out = u * h + (1 - u) * c``.

    N normalises the first 2H units, the gates, and the last H units, the candidate, separately. A padding row keeps its
    state; its gates are not written.

    Args:
        ax: Summed inputs from the input, ``(B, 3H)``: reset gate, update gate, candidate.
        ah: Summed inputs from the state, ``(B, 3H)``. ``bias`` is added to them in place.
        h: Previous state, ``(B, H)``.
        mask: ``(B,)``, true where a row is not padding; None for no padding.
        bias: ``(3H,)``; None for no bias.
        affine: ``(2, 2, 3H)``: gain and shift for ``ax``, gain and shift for ``ah``.
        form: Kind of norm, number of units in the statistic of the gates, number of units in the statistic of the
            candidate, and 1 if eps is inside the root, otherwise 0.
        eps: Added to the statistic.
        gates: ``(B, 3H)``, written: r, u, c.
        statistics: ``(B, 8)``, written: mean and scale for the gates of ``ax``, the candidate of ``ax``, the gates of
            ``ah``, and the candidate of ``ah``.
        out: New state, ``(B, H)``, written.
    """
    _check_arguments(ax, ah, h, gates, statistics, mask, affine, form)
    check_rows(h, out=(out, tuple(h.shape)))
    check_contiguous(h, bias=(bias, (3 * h.shape[1],)))
    _forward[(h.shape[0],)](
        *(ax, ah, h, mask, bias, affine, gates, statistics, out),
        **row_strides(ax=ax, ah=ah, h=h, mask=mask, gates=gates, statistics=statistics, out=out),
        **_norm_arguments(form, eps),
        **size_arguments(h.shape[1]),
    )


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
    """Compute the gradients of the inputs of :func:`gru_gates_forward`, except ``bias``.

    Args:
        dout: Gradient of this step's output, ``(B, H)``, or None for 0.
        dh: ``(B, H)``. On entry: the gradient that later steps send to the new state. On return: the gradient of ``h``,
            except through ``ah``.
        ah: Summed inputs from the state, to which :func:`gru_gates_forward` has added the bias.
        dax: Gradient of ``ax``, ``(B, 3H)``, written; 0 where a row is padding.
        dah: Gradient of ``ah``, ``(B, 3H)``, written; 0 where a row is padding.
        partials: ``(B, 2, 2, 3H)``, accumulated in place: gradient of ``affine`` for each row of the batch.

    For the other arguments see :func:`gru_gates_forward`.
    """
    _check_arguments(ax, ah, h, gates, statistics, mask, affine, form)
    (rows, hidden), width = h.shape, 3 * h.shape[1]
    check_rows(h, dout=(dout, (rows, hidden)), dh=(dh, (rows, hidden)), dax=(dax, (rows, width)))
    check_rows(h, dah=(dah, (rows, width)), partials=(partials, (rows, 2, 2, width)))
    strides = row_strides(dout=dout, dh=dh, ax=ax, ah=ah, h=h, gates=gates, statistics=statistics, mask=mask)
    _backward[(h.shape[0],)](
        *(dout, dh, ax, ah, h, gates, statistics, mask, affine, dax, dah, partials),
        **strides,
        **row_strides(dax=dax, dah=dah, partials=partials),
        **_norm_arguments(form, eps),
        **size_arguments(h.shape[1]),
    )


def _check_arguments(
    ax: Tensor,
    ah: Tensor,
    h: Tensor,
    gates: Tensor,
    statistics: Tensor,
    mask: Tensor | None,
    affine: Tensor,
    form: list[int],
) -> None:
    """Check the arguments that both operators take. Raises: ValueError."""
    rows, hidden, width = h.shape[0], h.shape[-1], 3 * h.shape[-1]
    kind, k_gates, k_candidate, inside = form
    check_form(kind, 2 * hidden, k_gates, bool(inside))
    check_form(kind, hidden, k_candidate, bool(inside))
    check_rows(h, h=(h, (rows, hidden)), ax=(ax, (rows, width)), ah=(ah, (rows, width)), gates=(gates, (rows, width)))
    check_rows(h, statistics=(statistics, (rows, 8)))
    check_contiguous(h, affine=(affine, (2, 2, width)))
    check_mask(mask, (rows,), h.device)


def _norm_arguments(form: list[int], eps: float) -> dict[str, float]:
    kind, k_gates, k_candidate, inside = form
    return {"k_gates": k_gates, "k_candidate": k_candidate, "KIND": kind, "EPS_INSIDE": bool(inside), "EPS": eps}
