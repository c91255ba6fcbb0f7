"""Parts of the kernels for one time step of a recurrence. Each program computes one row of the batch."""
# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from rmsexp.kernels.triton.rows import launch_options


@triton.jit
def not_padding(mask, row, mask_stride):
    """Return whether a row is not padding; ``mask`` is (B,) or None."""
    return True if mask is None else tl.load(mask + row * mask_stride)


@triton.jit
def padding_row_backward(
    dh,  # (H,) gradient of the state, added to
    dout,  # (H,) gradient of this step's output, or None
    dax,  # (width,) written: 0
    dah,  # (width,) written: 0
    hidden,
    width,
    BLOCK_N: tl.constexpr,
):
    """Compute the gradients of a padding row: its output is its previous state, without summed inputs."""
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
    """Return the arguments of a kernel that depend on the number of hidden units alone."""
    units = min(1024, triton.next_power_of_2(hidden))
    return {"hidden": hidden, "BLOCK_N": units, **launch_options(units)}
