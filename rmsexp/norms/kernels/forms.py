"""Descriptions of norms for the kernels, and checks of memory layouts."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor


class Kind:
    """The kinds of norms, as the integers that the operators take. build.py passes them to the C++ compiler, too."""

    NONE: Final = 0
    RMS: Final = 1
    LAYER: Final = 2
    EUCLID: Final = 3


class Form(NamedTuple):
    """A norm as the kernels take it: its ``kind``, a value of :class:`Kind`, and the options of its statistic.

    The first ``k`` units enter the statistic; for ``Kind.LAYER``, k is the number of all units. ``eps`` is added under
    the root if ``inside`` is true, otherwise to the root; for ``Kind.LAYER``, ``inside`` must be true.
    """

    kind: int
    k: int
    inside: bool = True
    eps: float = 0.0


class StepForm(NamedTuple):
    """The norms of a recurrent step, all of one kind; the operators' argument ``int[] form`` has these four values.

    ``gates`` is the number of units in the statistic of the gates. ``inner`` is the number of units in the statistic of
    the candidate (GRU) or cell (LSTM). ``kind`` and ``inside`` are those of :class:`Form`.
    """

    kind: int
    gates: int
    inner: int
    inside: bool


def is_readable(x: Tensor, maps: bool = False) -> bool:
    """Return whether the kernels read ``x`` without copying it.

    They do so for contiguous and channels-last maps, and for other dense tensors whose last axis is contiguous.
    Otherwise they read a contiguous copy, and their result is contiguous.
    """
    if maps:
        return x.is_contiguous() or is_channels_last(x)
    # empty_like keeps the strides of dense tensors only
    return x.stride(-1) == 1 and torch.empty_like(x, device="meta").stride() == x.stride()


def is_channels_last(maps: Tensor) -> bool:
    return maps.is_contiguous(memory_format=torch.channels_last) and not maps.is_contiguous()


def wide(x: Tensor) -> torch.dtype:
    """Return the dtype of the kernels' statistics and sums for ``x``: float64 for float64, otherwise float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
