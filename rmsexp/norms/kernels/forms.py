"""Descriptions of norms for the kernels, tensors saved for backward passes, and checks of memory layouts."""

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


class SavedGRU(NamedTuple):
    """The tensors that ``gru_forward`` returns and ``gru_backward`` reads.

    T time steps, B rows of the batch, H hidden units. ``statistics`` holds mean and scale of each norm of a step.
    Gates at padding positions are uninitialised.
    """

    states: Tensor  # (T + 1, B, H), with the initial state
    products: Tensor  # (T, B, 3 H), weight times the state, plus the bias
    gates: Tensor  # (T, B, 3 H), reset, update, candidate
    statistics: Tensor  # (T, B, 8), four norms


class SavedLSTM(NamedTuple):
    """The tensors that ``lstm_forward`` returns and ``lstm_backward`` reads. For shapes see :class:`SavedGRU`."""

    hidden: Tensor  # (T + 1, B, H), with the initial state
    cells: Tensor  # (T + 1, B, H), with the initial cell
    products: Tensor  # (T, B, 4 H), weight times the hidden state
    gates: Tensor  # (T, B, 5 H), input gate, forget gate, output gate, candidate, tanh of the normalised new cell
    statistics: Tensor  # (T, B, 6), three norms


class SavedDecoder(NamedTuple):
    """The tensors that ``decoder_forward`` returns and ``decoder_backward`` reads.

    S source positions, C units of a key, A units of a value; for T, B, H and statistics see :class:`SavedGRU`.
    """

    states: Tensor  # (T + 1, B, H), with the initial state
    contexts: Tensor  # (T, B, A), results of the attention
    between: Tensor  # (T, B, H), states between the first and the second GRU
    first_products: Tensor  # (T, B, 3 H), w_first times the state before the step
    joint_products: Tensor  # (T, B, C + 3 H), w_between times the state between the GRUs; the last 3 H with the bias
    context_products: Tensor  # (T, B, 3 H), w_context times the context, for the second GRU
    first_gates: Tensor  # (T, B, 3 H), reset, update, candidate
    first_statistics: Tensor  # (T, B, 8)
    second_gates: Tensor  # (T, B, 3 H), reset, update, candidate
    second_statistics: Tensor  # (T, B, 8)
    query_statistics: Tensor  # (T, B, 2)
    attention: Tensor  # (T, B, S), attention weights


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
