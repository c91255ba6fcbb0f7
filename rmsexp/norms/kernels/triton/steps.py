"""Code that the kernels for one time step of a GRU and of an LSTM share.

Shapes: B rows of the batch, one per program; H hidden units. Matrices are float32 or float64. Their last axis is
contiguous; their rows may have any stride. ``mask``, ``(B,)``, is a padding mask, true where a row is not padding.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from rmsexp.norms.kernels.triton.rows import launch_options


@triton.jit
def not_padding(mask, row, mask_stride):
    """Return whether a row is not padding. Without a mask, no row is padding."""
    return True if mask is None else tl.load(mask + row * mask_stride)


@triton.jit
def padding_row_backward(
    dh,  # (H,), accumulated in place: gradient of the state
    dout,  # (H,): gradient of this step's output, or None
    dax,  # (width,), written: 0
    dah,  # (width,), written: 0
    hidden,  # H
    width,  # number of summed inputs: 3H or 4H
    BLOCK_N: tl.constexpr,
):
    """Run the backward pass of a padding row, whose output is its previous state: add dout to dh, zero dax and dah."""
    units = tl.arange(0, BLOCK_N)[None, :]
    if dout is not None:
        for start in range(0, hidden, BLOCK_N):
            unit = start + units
            in_row = unit < hidden
            tl.store(dh + unit, tl.load(dh + unit, in_row) + tl.load(dout + unit, in_row), in_row)
    for start in range(0, width, BLOCK_N):
        unit = start + units
        tl.store(dax + unit, tl.zeros([1, BLOCK_N], dax.dtype.element_ty), unit < width)
        tl.store(dah + unit, tl.zeros([1, BLOCK_N], dah.dtype.element_ty), unit < width)


def size_arguments(hidden: int) -> dict[str, int]:
    """Return the kernel arguments that depend only on the number of hidden units."""
    units = min(1024, triton.next_power_of_2(hidden))
    return {"hidden": hidden, "BLOCK_N": units, **launch_options(units)}
