"""The fused norms."""

from __future__ import annotations

import torch
from torch import Tensor

from rmsexp.kernels.forms import Form


def normalise(
    x: Tensor, gain: Tensor | None, shift: Tensor | None, form: Form, *, maps: bool, slope: float = 1.0
) -> Tensor:
    """Return ``leaky_relu(normalised * gain + shift)``, with the shape and dtype of ``x``.

    ``x`` is normalised over its last axis, or with ``maps`` over the positions of each channel of an example.

    Args:
        x: ``(…, n)``, or with ``maps`` ``(batch, channels, height, width)``.
        gain: ``(n,)``, or with ``maps`` ``(channels,)``. None: 1.
        shift: As ``gain``. None: 0.
        form: The norm.
        maps: Whether ``x`` is feature maps.
        slope: Slope of the leaky ReLU, in (0, 1]. With 1 it changes nothing.

    float16 and bfloat16 are computed in float32.
    """
    y: Tensor = torch.ops.rmsexp.normalise.default(x, gain, shift, maps, *form, slope)
    return y
