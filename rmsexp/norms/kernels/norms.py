"""The functions that compute fused norms."""

from __future__ import annotations

import torch
from torch import Tensor

from rmsexp.norms.kernels.forms import Form


def normalise(
    x: Tensor, gain: Tensor | None, shift: Tensor | None, form: Form, *, maps: bool, slope: float = 1.0
) -> Tensor:
    """Return ``leaky_relu(normalised * gain + shift)``, with the shape and dtype of ``x``.

    ``x`` is normalised over its last axis, or with ``maps`` over the positions of each channel of an example.

    Args:
        x: ``(…, n)``, or with ``maps`` ``(batch, channels, height, width)``.
        gain: ``(n,)``, or with ``maps`` ``(channels,)``. None means no gain.
        shift: ``(n,)``, or with ``maps`` ``(channels,)``. None means no shift.
        form: Kind, statistic and eps of the norm.
        maps: Whether ``x`` is feature maps.
        slope: Slope of the leaky ReLU, in (0, 1]. A slope of 1 means no leaky ReLU.

    For float16 and bfloat16 input, all is computed in float32, on CUDA except the leaky ReLU. Results are deterministic
    for a fixed number of threads; with another number, gradients of gain and shift may differ by rounding errors.

    Raises: ValueError for tensors whose shapes or devices do not fit together, and for a form that the kernels cannot
    compute.
    """
    y: Tensor = torch.ops.rmsexp.normalise.default(x, gain, shift, maps, *form, slope)
    return y


def add_normalise(
    x: Tensor, addend: Tensor, gain: Tensor | None, shift: Tensor | None, form: Form
) -> tuple[Tensor, Tensor]:
    """Return ``total = x + addend`` and ``normalised(total) * gain + shift``, over the last axis.

    ``addend`` has the shape and device of ``x``, and its dtype or one of lower precision, as under autocast. For the
    other arguments, precision and errors see :func:`normalise`. Both results are those of an addition and of
    :func:`normalise`, bit by bit.
    """
    total, y = torch.ops.rmsexp.add_normalise.default(x, addend, gain, shift, *form)
    return total, y
