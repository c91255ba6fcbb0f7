# ruff: noqa: ARG001
"""Fake implementations of the operators, from which torch.compile learns shapes, dtypes and strides of results."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from rmsexp.norms.kernels.forms import Kind, SavedDecoder, SavedGRU, SavedLSTM, is_readable, wide


def register() -> None:
    for name, fake in FAKES.items():
        torch.library.register_fake(f"rmsexp::{name}", _on_one_device(fake))


def _on_one_device(fake: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``fake`` if all tensors are on one device.

    Otherwise it raises ValueError. Without this check, an operator with an input on CPU and a parameter on the meta
    device would return uninitialised memory.
    """

    @wraps(fake)
    def checked(*arguments: Any) -> Any:
        values = chain.from_iterable(value if isinstance(value, list) else [value] for value in arguments)
        devices = {str(value.device) for value in values if isinstance(value, Tensor)}
        if len(devices) > 1:
            raise ValueError(f"expected all tensors on one device, got {', '.join(sorted(devices))}")
        return fake(*arguments)

    return checked


def _empty_like(x: Tensor, maps: bool = False) -> Tensor:
    """Return an uninitialised tensor with the shape of ``x``.

    It has the strides of ``x`` if the kernels read ``x`` itself, and is contiguous if they read a copy. ``maps`` says
    whether ``x`` is feature maps.
    """
    return torch.empty_like(x) if is_readable(x, maps) else _contiguous_like(x)


def _contiguous_like(x: Tensor) -> Tensor:
    """Return an uninitialised, contiguous tensor with the shape of ``x``."""
    return x.new_empty(x.shape)


def _normalise_forward(
    x: Tensor, gain: Tensor | None, shift: Tensor | None, maps: bool, kind: int, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    vectors = x.shape[:2] if maps else x.shape[:-1]
    rows = math.prod(vectors) if maps or x.shape[-1] else 0  # the kernels skip vectors without elements
    return (
        _empty_like(x, maps),
        x.new_empty(rows if kind == Kind.LAYER else 0, dtype=wide(x)),
        x.new_empty(rows, dtype=wide(x)),
    )


def _normalise_backward(
    dy: Tensor,
    x: Tensor,
    gain: Tensor | None,
    mean: Tensor,
    scale: Tensor,
    shift: Tensor | None,
    maps: bool,
    *_: object,
) -> tuple[Tensor, Tensor, Tensor]:
    width = x.shape[1 if maps else -1]
    return (
        _empty_like(x, maps),
        scale.new_empty(0 if gain is None else width),
        scale.new_empty(0 if shift is None else width),
    )


def _pointwise_forward(
    x: Tensor,
    alpha: Tensor,
    offset: Tensor | None,
    gain: Tensor,
    shift: Tensor | None,
    function: str,
    maps: bool,
    *_: object,
) -> Tensor:
    return _empty_like(x, maps)


def _pointwise_backward(
    dy: Tensor,
    x: Tensor,
    alpha: Tensor,
    offset: Tensor | None,
    gain: Tensor,
    shift: Tensor | None,
    function: str,
    maps: bool,
    *_: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scalars, width = x.new_empty(2, dtype=wide(x)), gain.shape[0]
    return _empty_like(x, maps), scalars, scalars.new_empty(width), scalars.new_empty(0 if shift is None else width)


def _add_normalise_forward(
    x: Tensor, addend: Tensor, gain: Tensor | None, shift: Tensor | None, kind: int, *_: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y, mean, scale = _normalise_forward(x, gain, shift, False, kind)
    return torch.empty_like(y), y, mean, scale


def _add_normalise_backward(
    dtotal: Tensor,
    dy: Tensor,
    total: Tensor,
    gain: Tensor | None,
    mean: Tensor,
    scale: Tensor,
    shift: Tensor | None,
    *_: object,
) -> tuple[Tensor, Tensor, Tensor]:
    return _normalise_backward(dy, total, gain, mean, scale, shift, False)


def _gru_forward(x: Tensor, h0: Tensor, *_: object) -> list[Tensor]:
    batch, time, width = x.shape
    saved = SavedGRU(
        states=x.new_empty(time + 1, *h0.shape),
        products=x.new_empty(time, batch, width),
        gates=x.new_empty(time, batch, width),
        statistics=x.new_empty(time, batch, 8),
    )
    return list(saved)


def _gru_backward(dout: Tensor, x: Tensor, weight: Tensor, biased: bool, affine: Tensor, *_: object) -> list[Tensor]:
    bias = x.new_empty(x.shape[-1] if biased else 0)
    return [
        _empty_like(x),
        dout.new_empty(dout.shape[0], dout.shape[2]),
        *map(_contiguous_like, (weight, bias, affine)),
    ]


def _lstm_forward(x: Tensor, h0: Tensor, *_: object) -> list[Tensor]:
    batch, time, width = x.shape
    saved = SavedLSTM(
        hidden=x.new_empty(time + 1, *h0.shape),
        cells=x.new_empty(time + 1, *h0.shape),
        products=x.new_empty(time, batch, width),
        gates=x.new_empty(time, batch, width + h0.shape[1]),
        statistics=x.new_empty(time, batch, 6),
    )
    return list(saved)


def _lstm_backward(
    dout: Tensor, x: Tensor, weight: Tensor, affine: Tensor, cell_affine: Tensor, *_: object
) -> list[Tensor]:
    states = [dout.new_empty(dout.shape[0], dout.shape[2]) for _ in range(2)]
    return [_empty_like(x), *states, *map(_contiguous_like, (weight, affine, cell_affine))]


def _decoder_forward(x: Tensor, s0: Tensor, keys: Tensor, values: Tensor, *_: object) -> list[Tensor]:
    batch, time, width = x.shape
    positions, key_width = keys.shape[1:]

    def empty(size: int) -> Tensor:
        return x.new_empty(time, batch, size)

    saved = SavedDecoder(
        states=x.new_empty(time + 1, *s0.shape),
        contexts=empty(values.shape[2]),
        between=empty(s0.shape[1]),
        first_products=empty(width),
        joint_products=empty(key_width + width),
        context_products=empty(width),
        first_gates=empty(width),
        first_statistics=empty(8),
        second_gates=empty(width),
        second_statistics=empty(8),
        query_statistics=empty(2),
        attention=empty(positions),
    )
    return list(saved)


def _decoder_backward(
    dstates: Tensor,
    dcontexts: Tensor,
    x: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    w_first: Tensor,
    w_between: Tensor,
    biased: bool,
    w_context: Tensor,
    score: Tensor,
    affine_first: Tensor,
    affine_second: Tensor,
    affine_query: Tensor,
    *_: object,
) -> list[Tensor]:
    state, bias = dstates.new_empty(dstates.shape[0], dstates.shape[2]), x.new_empty(x.shape[-1] if biased else 0)
    others = (state, keys, values, w_first, w_between, bias, w_context, score)
    return [_empty_like(x), *map(_contiguous_like, (*others, affine_first, affine_second, affine_query))]


FAKES: dict[str, Callable[..., Any]] = {
    "normalise_forward": _normalise_forward,
    "normalise_backward": _normalise_backward,
    "pointwise_forward": _pointwise_forward,
    "pointwise_backward": _pointwise_backward,
    "add_normalise_forward": _add_normalise_forward,
    "add_normalise_backward": _add_normalise_backward,
    "gru_forward": _gru_forward,
    "gru_backward": _gru_backward,
    "lstm_forward": _lstm_forward,
    "lstm_backward": _lstm_backward,
    "decoder_forward": _decoder_forward,
    "decoder_backward": _decoder_backward,
}
