"""The function that computes a fused pointwise function with gain and shift."""

from __future__ import annotations

import torch
from torch import Tensor


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
    """Return ``leaky_relu(f(alpha * x + offset) * gain + shift)``, with the shape and dtype of ``x``.

    Args:
        x: ``(…, n)``, or with ``maps`` ``(batch, channels, height, width)``.
        alpha: ``(1,)``.
        offset: ``(1,)``. None means no offset.
        gain: ``(n,)``, or with ``maps`` ``(channels,)``.
        shift: ``(n,)``, or with ``maps`` ``(channels,)``. None means no shift.
        function: The name of f, "tanh" or "erf".
        maps: Whether ``x`` is feature maps.
        slope: Slope of the leaky ReLU, in (0, 1]. A slope of 1 means no leaky ReLU.

    For float16 and bfloat16 input, all is computed in float32, on CUDA except the leaky ReLU. Results are deterministic
    for a fixed number of threads; with another number, gradients of parameters may differ by rounding errors.

    Raises: ValueError for tensors whose shapes or devices do not fit together, and for another function or slope.
    """
    y: Tensor = torch.ops.rmsexp.pointwise.default(x, alpha, offset, gain, shift, function, maps, slope)
    return y
