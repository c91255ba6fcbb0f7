"""Checks of an operator's arguments, made before a kernel is launched with them. All raise ValueError."""

from __future__ import annotations

import torch
from torch import Tensor

from rmsexp.norms.kernels.forms import Kind

Expected = tuple[Tensor | None, tuple[int, ...]]  # a tensor and the shape that it must have; None passes every check


def check(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    """Check a tensor's shape, dtype and device."""
    if tensor.shape != shape:
        raise ValueError(f"expected {name} of shape {list(shape)}, got {list(tensor.shape)}")
    if tensor.dtype != dtype or tensor.device != device:
        raise ValueError(f"expected {name} of dtype {dtype} on {device}, got {tensor.dtype} on {tensor.device}")


def check_rows(like: Tensor, **tensors: Expected) -> None:
    """Check shapes, and that each tensor has the dtype and device of ``like`` and contiguous rows.

    The rows are contiguous if the tensor is, or would be with another stride of its first axis.
    """
    for name, (tensor, shape) in tensors.items():
        if tensor is None:
            continue
        check(name, tensor, shape, like.dtype, like.device)
        _check_layout(name, tensor)


def check_contiguous(like: Tensor, **tensors: Expected) -> None:
    """Check shapes, and that each tensor has the dtype and device of ``like`` and is contiguous."""
    for name, (tensor, shape) in tensors.items():
        if tensor is None:
            continue
        check(name, tensor, shape, like.dtype, like.device)
        if not tensor.is_contiguous():
            raise ValueError(f"expected a contiguous tensor {name}")


def check_mask(mask: Tensor | None, shape: tuple[int, ...], device: torch.device) -> None:
    """Check a mask's shape and device, and that it has contiguous rows of Boolean values; None passes."""
    if mask is not None:
        check("mask", mask, shape, torch.bool, device)
        _check_layout("mask", mask)


def _check_layout(name: str, tensor: Tensor) -> None:
    if not tensor.is_contiguous() and not tensor[0].is_contiguous():
        raise ValueError(f"expected {name} to be contiguous, except along its first axis")


def check_parameter(name: str, vector: Tensor | None, width: int, device: torch.device) -> None:
    """Check that a gain or shift has ``width`` values of any floating-point dtype; None passes."""
    if vector is not None:
        dtype = vector.dtype if vector.is_floating_point() else torch.float32
        check(name, vector, (width,), dtype, device)


def check_form(kind: int, n: int, k: int, inside: bool) -> None:
    """Check that the kernels can compute the norm of ``n`` units with ``k`` units in its statistic.

    ``inside``: whether its eps is inside the root.
    """
    if kind not in (Kind.NONE, Kind.RMS, Kind.LAYER, Kind.EUCLID):
        raise ValueError(f"unknown kind of norm: {kind}")
    if kind == Kind.LAYER and not inside:
        raise ValueError("expected the eps of layer norm inside the root")
    if not 1 <= k <= n or (kind == Kind.LAYER and k != n):
        least = n if kind == Kind.LAYER else 1
        raise ValueError(f"expected from {least} to {n} units in the statistic of a norm, got {k}")
