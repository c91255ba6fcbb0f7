"""The norm layers of a model alone: which calls of them steps make, and those calls again without the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rmsexp.norms.base import Identity, Linear, Normaliser


class Call(NamedTuple):
    """A layer, the shape and type of what it normalised, and what else it was told, such as a mask."""

    layer: nn.Module
    shape: torch.Size
    dtype: torch.dtype
    options: dict[str, Any]


@contextmanager
def recorded(model: nn.Module) -> Iterator[list[Call]]:
    """Collects, in their order, the calls of the model's normalisers and weight re-parametrisations inside."""
    calls: list[Call] = []

    def keep(layer: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        calls.append(Call(layer, inputs[0].shape, inputs[0].dtype, options))

    layers = [layer for layer in model.modules() if isinstance(layer, Normaliser) and not isinstance(layer, Identity)]
    weights = [layer.reparametrisation for layer in model.modules() if isinstance(layer, Linear)]
    handles = [
        layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in (*layers, *weights) if layer is not None
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


class Replay:
    """Makes calls again, forward and backward, on values of the same shapes: what the layers cost without the rest.

    ``calls``: of some steps, which are repeated in turn.
    """

    def __init__(self, calls: Sequence[list[Call]], values: Callable[[torch.Size, torch.dtype], Tensor]) -> None:
        self._calls = calls
        self._inputs: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
        self._gradients: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
        for call in chain.from_iterable(calls):
            key = (call.shape, call.dtype)
            if key not in self._inputs:
                self._inputs[key] = values(*key).requires_grad_()
                self._gradients[key] = values(*key)

    def take(
        self,
        step: int,
        batches: object,  # noqa: ARG002
        part: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """All calls of one step, then the gradients of all."""
        calls = self._calls[step % len(self._calls)]
        with part("forward"):
            outputs = [call.layer(self._inputs[call.shape, call.dtype], **call.options) for call in calls]
        with part("backward"):
            torch.autograd.backward(outputs, [self._gradients[call.shape, call.dtype] for call in calls])
        for layer in {call.layer for call in calls}:
            layer.zero_grad()
        for value in self._inputs.values():
            value.grad = None
