"""What a kernel must know of a norm, and of memory."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor


class Kind:
    """As the C++ sources number them; plain numbers, since every call hands one over."""

    NONE: Final = 0
    RMS: Final = 1
    LAYER: Final = 2
    EUCLID: Final = 3


class Form(NamedTuple):
    """A norm of n units; the first ``k`` of them enter its statistic, and eps may lie ``inside`` the root."""

    kind: int
    k: int
    inside: bool = True
    eps: float = 0.0


def is_readable(x: Tensor, maps: bool = False) -> bool:
    """Whether the norms' kernels read ``x`` where it lies: dense rows, or maps in one of their two memory formats.

    Otherwise they read a contiguous copy, and their result is contiguous.
    """
    if maps:
        return x.is_contiguous() or is_channels_last(x)
    # empty_like keeps the strides of dense tensors alone
    return x.stride(-1) == 1 and torch.empty_like(x, device="meta").stride() == x.stride()


def is_channels_last(maps: Tensor) -> bool:
    return maps.is_contiguous(memory_format=torch.channels_last) and not maps.is_contiguous()


def wide(x: Tensor) -> torch.dtype:
    """In what statistics and sums are computed."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
