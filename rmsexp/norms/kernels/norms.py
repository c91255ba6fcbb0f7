"""The operators of fused norms, and of fused pointwise functions in the place of a norm; how they describe norms.

``torch.ops.rmsexp.normalise`` and ``add_normalise`` are defined in cpp/norms.cpp, and for CUDA in triton/norms.py.

``x`` is ``(…, n)``, or with ``maps`` feature maps ``(batch, channels, height, width)``. ``gain`` and ``shift`` are
``(n,)``, or with ``maps`` ``(channels,)``; None means none. ``slope``, in (0, 1], is that of a leaky ReLU of the
result; 1 means no leaky ReLU. Results have the shape and dtype of ``x``.

For float16 and bfloat16 input, all is computed in float32, on CUDA except the leaky ReLU. Results are deterministic for
a fixed number of threads; with another number, gradients of parameters may differ by rounding errors. There are first
derivatives only, and no transforms of ``torch.func``.

The operators raise ValueError for parameters whose shapes or devices do not fit ``x``.
"""

import math
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor


class Kind:
    """The kinds of norms, as the integers that the operators take. build.py passes them to the C++ compiler, too."""

    NONE: Final = 0
    RMS: Final = 1
    LAYER: Final = 2
    EUCLID: Final = 3
    TANH: Final = 4  # the kinds of pointwise functions, which have no statistics
    ERF: Final = 5


class Form(NamedTuple):
    """A norm as the kernels take it, with the options of its statistic."""

    kind: int  # a value of Kind
    k: int  # number of units, the first ones, that enter the statistic; of all units for Kind.LAYER
    inside: bool = True  # whether eps is added under the root, and not to the root; must be true for Kind.LAYER
    eps: float = 0.0


class StepForm(NamedTuple):
    """The norms of a recurrent step, all of one kind; the operators' argument ``int[] form`` has these four values."""

    kind: int  # as in Form
    gates: int  # number of units in the statistic of the gates
    inner: int  # number of units in the statistic of the candidate (GRU) or cell (LSTM)
    inside: bool  # as in Form


def is_readable(x: Tensor, maps: bool = False) -> bool:
    """Return whether the kernels read ``x`` itself, and no contiguous copy.

    They do so for contiguous and channels-last maps, and for other dense tensors whose last axis is contiguous.
    """
    if maps:
        return x.is_contiguous() or is_channels_last(x)
    # empty_like keeps the strides of dense tensors only
    return x.stride(-1) == 1 and torch.empty_like(x, device="meta").stride() == x.stride()


def is_channels_last(maps: Tensor) -> bool:
    return maps.is_contiguous(memory_format=torch.channels_last) and not maps.is_contiguous()


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which norms compute for input of this dtype: float32 for float16 and bfloat16."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def register_fakes() -> None:
    """Register the operators' fake implementations: shapes, dtypes and strides of results, for torch.compile."""
    for fake in (_normalise_forward, _normalise_backward):
        torch.library.register_fake(f"rmsexp::{fake.__name__.removeprefix('_')}", fake)


def _empty_like(x: Tensor, maps: bool = False) -> Tensor:
    """Return an uninitialised tensor like ``x``, with its strides if the kernels read ``x`` itself, else contiguous."""
    return torch.empty_like(x) if is_readable(x, maps) else x.new_empty(x.shape)


def _normalise_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, addend, _gain, _shift, maps, kind, *_ = arguments
    vectors = x.shape[:2] if maps else x.shape[:-1]
    rows = math.prod(vectors) if maps or x.shape[-1] else 0  # the kernels skip vectors without elements
    rows = 0 if kind in (Kind.TANH, Kind.ERF) else rows
    mean = x.new_empty(rows if kind == Kind.LAYER else 0, dtype=compute_dtype(x.dtype))
    total = x.new_empty(0) if addend is None else _empty_like(x)
    return _empty_like(x, maps), mean, mean.new_empty(rows), total


def _normalise_backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _dy, _dtotal, x, gain, _mean, scale, shift, maps, kind, *_ = arguments
    dgain, dshift = (scale.new_empty(0 if v is None else x.shape[1 if maps else -1]) for v in (gain, shift))
    return _empty_like(x, maps), dgain, dshift, scale.new_empty(2 if kind in (Kind.TANH, Kind.ERF) else 0)
