"""What the kernels must know about a norm, about saved tensors, and about memory layouts."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor


class Kind:
    """The kinds of norms. Integers, since every call passes one; build.py passes them on to the C++ sources."""

    NONE: Final = 0
    RMS: Final = 1
    LAYER: Final = 2
    EUCLID: Final = 3


class Form(NamedTuple):
    """A norm whose statistic is of the first ``k`` units; with ``inside``, eps is added under the root."""

    kind: int
    k: int
    inside: bool = True
    eps: float = 0.0


class StepForm(NamedTuple):
    """The two norms of a recurrent step, of the same kind: the argument ``int[] form`` of the operators.

    ``gates`` and ``inner``: units in the statistic of the gates, and in that of the candidate (GRU) or cell (LSTM).
    """

    kind: int
    gates: int
    inner: int
    inside: bool


class SavedGRU(NamedTuple):
    """What ``gru_forward`` returns, and ``gru_backward`` reads. The statistics are means and scales of the norms."""

    states: Tensor  # (T + 1, B, H), with the initial state
    products: Tensor  # (T, B, 3 H), of the state, with the bias
    gates: Tensor  # (T, B, 3 H)
    statistics: Tensor  # (T, B, 8)


class SavedLSTM(NamedTuple):
    """What ``lstm_forward`` returns, and ``lstm_backward`` reads."""

    hidden: Tensor  # (T + 1, B, H), with the initial state
    cells: Tensor  # (T + 1, B, H), with the initial cell
    products: Tensor  # (T, B, 4 H), of the hidden state
    gates: Tensor  # (T, B, 5 H), with tanh of the normalised cell
    statistics: Tensor  # (T, B, 6)


class SavedDecoder(NamedTuple):
    """What ``decoder_forward`` returns, and ``decoder_backward`` reads."""

    states: Tensor  # (T + 1, B, H), with the initial state
    contexts: Tensor  # (T, B, A)
    between: Tensor  # (T, B, H), the states of the first GRU
    first_products: Tensor  # (T, B, 3 H), of the state
    joint_products: Tensor  # (T, B, C + 3 H), of the state between the GRUs: for the query and the second GRU
    context_products: Tensor  # (T, B, 3 H)
    first_gates: Tensor  # (T, B, 3 H)
    first_statistics: Tensor  # (T, B, 8)
    second_gates: Tensor  # (T, B, 3 H)
    second_statistics: Tensor  # (T, B, 8)
    query_statistics: Tensor  # (T, B, 2)
    attention: Tensor  # (T, B, S)


def is_readable(x: Tensor, maps: bool = False) -> bool:
    """Whether the kernels of norms read the memory of ``x`` as it is: dense rows, contiguous or channels-last maps.

    They read a contiguous copy of other tensors, and their result is contiguous then.
    """
    if maps:
        return x.is_contiguous() or is_channels_last(x)
    # empty_like keeps the strides of dense tensors only
    return x.stride(-1) == 1 and torch.empty_like(x, device="meta").stride() == x.stride()


def is_channels_last(maps: Tensor) -> bool:
    return maps.is_contiguous(memory_format=torch.channels_last) and not maps.is_contiguous()


def wide(x: Tensor) -> torch.dtype:
    """The type in which statistics and sums are computed."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
