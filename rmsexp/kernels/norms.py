"""The fused norms."""

from __future__ import annotations

import torch
from torch import Tensor

from rmsexp.kernels.forms import Form


def normalise(
    x: Tensor, gain: Tensor | None, shift: Tensor | None, form: Form, *, maps: bool, slope: float = 1.0
) -> Tensor:
    """``standardised x * gain + shift`` over the last axis, or with ``maps`` over the positions of each channel.

    ``x``: ``(…, n)``, or ``(batch, channels, height, width)``; ``gain`` and ``shift``: ``(n,)``, or ``(channels,)``.
    float16 and bfloat16 are computed in float32. A leaky ReLU with this ``slope`` is applied to the result; 1: none.
    """
    y: Tensor = torch.ops.rmsexp.normalise.default(x, gain, shift, maps, *form, slope)
    return y
