"""Descriptions of norms for the kernels, tensors saved for backward passes, and memory layouts that kernels read."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor


class Kind:
    """The kinds of norms, as the integers that operators take. build.py passes these numbers to the C++ compiler."""

    NONE: Final = 0
    RMS: Final = 1
    LAYER: Final = 2
    EUCLID: Final = 3


class Form(NamedTuple):
    """A norm of a kind (see :class:`Kind`) whose statistic is over the first ``k`` units.

    ``eps`` is added under the root if ``inside`` is true, otherwise to the root.
    """

    kind: int
    k: int
    inside: bool = True
    eps: float = 0.0


class StepForm(NamedTuple):
    """The norms of a recurrent step, all of one kind. The operators take it as the argument ``int[] form``.

    ``gates`` is the number of units in the statistic of the gates. ``inner`` is the number of units in the statistic of
    the candidate (GRU) or cell (LSTM).
    """

    kind: int
    gates: int
    inner: int
    inside: bool


class SavedGRU(NamedTuple):
    """The tensors that ``gru_forward`` returns and ``gru_backward`` reads.

    T time steps, B rows of the batch, H hidden units. ``statistics`` holds mean and scale of each norm.
    """

    states: Tensor  # (T + 1, B, H), with the initial state
    products: Tensor  # (T, B, 3 H), weight times the state, plus the bias
    gates: Tensor  # (T, B, 3 H), reset, update, candidate
    statistics: Tensor  # (T, B, 8)


class SavedLSTM(NamedTuple):
    """The tensors that ``lstm_forward`` returns and ``lstm_backward`` reads."""

    hidden: Tensor  # (T + 1, B, H), with the initial state
    cells: Tensor  # (T + 1, B, H), with the initial cell
    products: Tensor  # (T, B, 4 H), weight times the hidden state
    gates: Tensor  # (T, B, 5 H), in, forget, out, value, tanh of the normalised cell
    statistics: Tensor  # (T, B, 6)


class SavedDecoder(NamedTuple):
    """The tensors that ``decoder_forward`` returns and ``decoder_backward`` reads.

    S source positions, C units of a key, A units of a value.
    """

    states: Tensor  # (T + 1, B, H), with the initial state
    contexts: Tensor  # (T, B, A), results of the attention
    between: Tensor  # (T, B, H), states between the first and the second GRU
    first_products: Tensor  # (T, B, 3 H), w_first times the state before the step
    joint_products: Tensor  # (T, B, C + 3 H), w_between times the state between the GRUs
    context_products: Tensor  # (T, B, 3 H), w_context (from attention context to second GRU) times context
    first_gates: Tensor  # (T, B, 3 H), reset, update, candidate
    first_statistics: Tensor  # (T, B, 8)
    second_gates: Tensor  # (T, B, 3 H)
    second_statistics: Tensor  # (T, B, 8)
    query_statistics: Tensor  # (T, B, 2)
    attention: Tensor  # (T, B, S), attention weights


def is_readable(x: Tensor, maps: bool = False) -> bool:
    """Return whether norm kernels read ``x`` without copying it: dense tensors, contiguous or channels-last maps.

    Of other tensors the kernels read a contiguous copy, and their result is contiguous.
    """
    if maps:
        return x.is_contiguous() or is_channels_last(x)
    # only for dense tensors, empty_like keeps the strides
    return x.stride(-1) == 1 and torch.empty_like(x, device="meta").stride() == x.stride()


def is_channels_last(maps: Tensor) -> bool:
    return maps.is_contiguous(memory_format=torch.channels_last) and not maps.is_contiguous()


def wide(x: Tensor) -> torch.dtype:
    """Return the dtype in which kernels compute statistics and sums for ``x``."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
