"""Fake implementations of the operators, from which torch.compile learns shapes, dtypes and strides of results."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rmsexp.norms.kernels.forms import Kind, is_readable, wide
from rmsexp.norms.kernels.recurrences import INPUTS, SAVED, shape, sizes_of

Optional = Tensor | None


def register() -> None:
    for name, fake in FAKES.items():
        torch.library.register_fake(f"rmsexp::{name}", fake)
    for cell in INPUTS:
        torch.library.register_fake(f"rmsexp::{cell}_forward", partial(_sequence_forward, cell))
        torch.library.register_fake(f"rmsexp::{cell}_backward", _sequence_backward)


def _empty_like(x: Tensor, maps: bool = False) -> Tensor:
    """Return an uninitialised tensor with the shape of ``x``.

    It has the strides of ``x`` if the kernels read ``x`` itself, and is contiguous if they read a copy. ``maps`` says
    whether ``x`` is feature maps.
    """
    return torch.empty_like(x) if is_readable(x, maps) else x.new_empty(x.shape)


def _normalise_forward(
    x: Tensor, _gain: Optional, _shift: Optional, maps: bool, kind: int, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    vectors = x.shape[:2] if maps else x.shape[:-1]
    rows = math.prod(vectors) if maps or x.shape[-1] else 0  # the kernels skip vectors without elements
    mean = x.new_empty(rows if kind == Kind.LAYER else 0, dtype=wide(x))
    return _empty_like(x, maps), mean, mean.new_empty(rows)


def _normalise_backward(
    _dy: Tensor, x: Tensor, gain: Optional, _mean: Tensor, scale: Tensor, shift: Optional, maps: bool, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    dgain, dshift = (scale.new_empty(0 if v is None else x.shape[1 if maps else -1]) for v in (gain, shift))
    return _empty_like(x, maps), dgain, dshift


def _pointwise_forward(
    x: Tensor, _alpha: Tensor, _offset: Optional, _gain: Tensor, _shift: Optional, _name: str, maps: bool, *_: object
) -> Tensor:
    return _empty_like(x, maps)


def _pointwise_backward(
    _dy: Tensor,
    x: Tensor,
    _alpha: Tensor,
    _offset: Optional,
    gain: Tensor,
    shift: Optional,
    _name: str,
    maps: bool,
    *_: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scalars, width = x.new_empty(2, dtype=wide(x)), gain.shape[0]
    return _empty_like(x, maps), scalars, scalars.new_empty(width), scalars.new_empty(0 if shift is None else width)


def _add_normalise_forward(
    x: Tensor, _addend: Tensor, gain: Optional, shift: Optional, kind: int, *_: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y, mean, scale = _normalise_forward(x, gain, shift, False, kind)
    return torch.empty_like(y), y, mean, scale


def _add_normalise_backward(
    _dtotal: Tensor, dy: Tensor, total: Tensor, gain: Optional, mean: Tensor, scale: Tensor, shift: Optional, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    return _normalise_backward(dy, total, gain, mean, scale, shift, False)


def _sequence_forward(cell: str, inputs: list[Optional], *_: object) -> list[Tensor]:
    sizes, x = sizes_of(cell, dict(zip(INPUTS[cell], inputs, strict=True))), inputs[0]
    assert x is not None
    return [x.new_empty(shape(axes, sizes)) for axes in SAVED[cell]]


def _sequence_backward(_gradients: list[Tensor], inputs: list[Optional], *_: object) -> list[Tensor]:
    x, *others, _mask = inputs
    assert x is not None
    return [_empty_like(x), *(x.new_empty(0 if tensor is None else tensor.shape) for tensor in others)]


FAKES: dict[str, Callable[..., Any]] = {
    "normalise_forward": _normalise_forward,
    "normalise_backward": _normalise_backward,
    "pointwise_forward": _pointwise_forward,
    "pointwise_backward": _pointwise_backward,
    "add_normalise_forward": _add_normalise_forward,
    "add_normalise_backward": _add_normalise_backward,
}
