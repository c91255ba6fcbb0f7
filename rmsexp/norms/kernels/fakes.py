"""Fake implementations of the operators, from which torch.compile learns shapes, dtypes and strides of results."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rmsexp.norms.kernels.norms import Kind, compute_dtype, is_readable
from rmsexp.norms.kernels.recurrences import INPUTS, SAVED, shape, sizes_of

Optional = Tensor | None


def register() -> None:
    for fake in (_normalise_forward, _normalise_backward, _pointwise_forward, _pointwise_backward):
        torch.library.register_fake(f"rmsexp::{fake.__name__.removeprefix('_')}", fake)
    for cell in INPUTS:
        torch.library.register_fake(f"rmsexp::{cell}_forward", partial(_sequence_forward, cell))
        torch.library.register_fake(f"rmsexp::{cell}_backward", _sequence_backward)


def _empty_like(x: Tensor, maps: bool = False) -> Tensor:
    """Return an uninitialised tensor with the shape of ``x``.

    It has the strides of ``x`` if the kernels read ``x`` itself, and is contiguous if they read a copy. ``maps`` says
    whether ``x`` is feature maps.
    """
    return torch.empty_like(x) if is_readable(x, maps) else x.new_empty(x.shape)


def _normalise_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, addend, _gain, _shift, maps, kind, *_ = arguments
    vectors = x.shape[:2] if maps else x.shape[:-1]
    rows = math.prod(vectors) if maps or x.shape[-1] else 0  # the kernels skip vectors without elements
    mean = x.new_empty(rows if kind == Kind.LAYER else 0, dtype=compute_dtype(x.dtype))
    total = x.new_empty(0) if addend is None else _empty_like(x)
    return _empty_like(x, maps), mean, mean.new_empty(rows), total


def _normalise_backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    _dy, _dtotal, x, gain, _mean, scale, shift, maps, *_ = arguments
    dgain, dshift = (scale.new_empty(0 if v is None else x.shape[1 if maps else -1]) for v in (gain, shift))
    return _empty_like(x, maps), dgain, dshift


def _pointwise_forward(*arguments: Any) -> Tensor:
    x, _alpha, _offset, _gain, _shift, _name, maps, *_ = arguments
    return _empty_like(x, maps)


def _pointwise_backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _dy, x, _alpha, _offset, gain, shift, _name, maps, *_ = arguments
    scalars, width = x.new_empty(2, dtype=compute_dtype(x.dtype)), gain.shape[0]
    return _empty_like(x, maps), scalars, scalars.new_empty(width), scalars.new_empty(0 if shift is None else width)


def _sequence_forward(cell: str, inputs: list[Optional], *_: object) -> list[Tensor]:
    sizes, x = sizes_of(cell, dict(zip(INPUTS[cell], inputs, strict=True))), inputs[0]
    assert x is not None
    return [x.new_empty(shape(axes, sizes)) for axes in SAVED[cell]]


def _sequence_backward(_gradients: list[Tensor], inputs: list[Optional], *_: object) -> list[Tensor]:
    x, *others, _mask = inputs
    assert x is not None
    return [_empty_like(x), *(x.new_empty(0 if tensor is None else tensor.shape) for tensor in others)]
