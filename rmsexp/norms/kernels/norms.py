"""The functions that compute fused norms, and fused pointwise functions that take the place of a norm.

``x`` is ``(…, n)``, or with ``maps`` feature maps ``(batch, channels, height, width)``. ``gain`` and ``shift`` are
``(n,)``, or with ``maps`` ``(channels,)``; None means none. ``slope``, in (0, 1], is that of a leaky ReLU of the
result; 1 means no leaky ReLU. Results have the shape and dtype of ``x``.

For float16 and bfloat16 input, all is computed in float32, on CUDA except the leaky ReLU. Results are deterministic for
a fixed number of threads; with another number, gradients of parameters may differ by rounding errors. There are first
derivatives only, and no transforms of ``torch.func``.

All functions raise ValueError for tensors whose shapes or devices do not fit together, and for options that the kernels
do not know.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rmsexp.norms.kernels.forms import Form


def normalise(
    x: Tensor, gain: Tensor | None, shift: Tensor | None, form: Form, *, maps: bool, slope: float = 1.0
) -> Tensor:
    """Return ``leaky_relu(normalised * gain + shift)``.

    ``x`` is normalised over its last axis, or with ``maps`` over the positions of each channel of an example.
    """
    y: Tensor = torch.ops.rmsexp.normalise.default(x, gain, shift, maps, *form, slope)
    return y


def add_normalise(
    x: Tensor, addend: Tensor, gain: Tensor | None, shift: Tensor | None, form: Form
) -> tuple[Tensor, Tensor]:
    """Return ``total = x + addend`` and ``normalised(total) * gain + shift``, over the last axis.

    ``addend`` has the shape and device of ``x``, and its dtype or one of lower precision, as under autocast. Both
    results are those of an addition and of :func:`normalise`, bit by bit.
    """
    total, y = torch.ops.rmsexp.add_normalise.default(x, addend, gain, shift, *form)
    return total, y


def pointwise(
    x: Tensor,
    alpha: Tensor,
    offset: Tensor | None,
    gain: Tensor,
    shift: Tensor | None,
    function: str,
    *,
    maps: bool,
    slope: float = 1.0,
) -> Tensor:
    """Return ``leaky_relu(f(alpha * x + offset) * gain + shift)``.

    ``alpha`` and ``offset`` are ``(1,)``; None means no offset. ``function``: the name of f, "tanh" or "erf".
    """
    y: Tensor = torch.ops.rmsexp.pointwise.default(x, alpha, offset, gain, shift, function, maps, slope)
    return y
