"""What the kernels of one time step of a recurrence share: a program a row of the batch, which may not be real."""
# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from rmsexp.kernels.triton.rows import launch_options


@triton.jit
def is_real(mask, row, stride):
    return True if mask is None else tl.load(mask + row * stride)


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


def tile(hidden: int) -> dict[str, int]:
    units = min(1024, triton.next_power_of_2(hidden))
    return {"U": units, **launch_options(units)}
