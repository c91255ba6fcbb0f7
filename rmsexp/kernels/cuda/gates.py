"""One time step of the normalised GRU and LSTM behind their matrix products, as Triton kernels: a program a row.

Shapes: rows of the batch B, hidden size H. Matrices are float32 or float64, their last axis contiguous and their rows
any stride apart. Statistics are pairs of mean and scale. A mask, ``(B,)``, is true where a row is real.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl
from torch import Tensor

from rmsexp.kernels.cuda.norms import correction, launch_options, row_statistics


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
def is_real(mask, row, stride):
    return True if mask is None else tl.load(mask + row * stride)


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


@triton.jit
def skip_row(dh, dout, dax, dah, hidden, width, U: tl.constexpr):
    """The gradients of a row that is not real: all goes to the state before, nothing to the summed inputs."""
    units = tl.arange(0, U)[None, :]
    if dout is not None:
        for first in range(0, hidden, U):
            unit = first + units
            here = unit < hidden
            tl.store(dh + unit, tl.load(dh + unit, here) + tl.load(dout + unit, here), here)
    for first in range(0, width, U):
        unit = first + units
        tl.store(dax + unit, tl.zeros([1, U], dax.dtype.element_ty), unit < width)
        tl.store(dah + unit, tl.zeros([1, U], dax.dtype.element_ty), unit < width)


@triton.jit
def _gru_forward(
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
def _gru_backward(
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


@triton.jit
def _lstm_forward(
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
def _lstm_backward(
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


def _tile(hidden: int) -> dict[str, int]:
    units = min(1024, triton.next_power_of_2(hidden))
    return {"U": units, **launch_options(units)}


def strides(*matrices: Tensor | None) -> list[int]:
    return [0 if of is None else of.stride(0) for of in matrices]


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
    _gru_forward[(h.shape[0],)](*tensors, *apart, *sizes, **_tile(h.shape[1]))


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
    _gru_backward[(h.shape[0],)](*tensors, *apart, *sizes, **_tile(h.shape[1]))


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
    _lstm_forward[(h.shape[0],)](*tensors, *apart, *sizes, **_tile(h.shape[1]))


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
    _lstm_backward[(c.shape[0],)](*tensors, *apart, *sizes, **_tile(c.shape[1]))
