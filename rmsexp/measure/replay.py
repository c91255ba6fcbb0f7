"""Record the calls of a model's norm layers in some steps, then repeat these calls without the rest of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rmsexp.norms.base import Identity, Linear, Normaliser
from rmsexp.train.step import Part


class LayerCall(NamedTuple):
    """A recorded call: the layer, the shape and dtype of its input, and the keyword arguments, such as a mask."""

    layer: nn.Module
    shape: torch.Size
    dtype: torch.dtype
    keywords: dict[str, Any]


@contextmanager
def record_calls(model: nn.Module) -> Iterator[list[LayerCall]]:
    """Record, in order, the calls of the model's normalisers and weight re-parametrisations inside the context."""
    calls: list[LayerCall] = []

    def append(layer: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        calls.append(LayerCall(layer, inputs[0].shape, inputs[0].dtype, keywords))

    layers = [layer for layer in model.modules() if isinstance(layer, Normaliser) and not isinstance(layer, Identity)]
    weights = [layer.reparametrisation for layer in model.modules() if isinstance(layer, Linear)]
    handles = [
        layer.register_forward_pre_hook(append, with_kwargs=True) for layer in (*layers, *weights) if layer is not None
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


class Replay:
    """Repeats recorded calls, forward and backward, on random values of the same shapes.

    ``calls``: the calls of each recorded step; step ``i`` of the replay repeats those of entry ``i % len(calls)``.
    ``draw``: returns random values of a given shape and dtype.
    """

    def __init__(self, calls: Sequence[list[LayerCall]], draw: Callable[[torch.Size, torch.dtype], Tensor]) -> None:
        self._calls = calls
        self._inputs: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
        self._gradients: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
        for call in chain.from_iterable(calls):
            key = (call.shape, call.dtype)
            if key not in self._inputs:
                self._inputs[key] = draw(*key).requires_grad_()
                self._gradients[key] = draw(*key)

    def take(self, step: int, batches: object, part: Part = nullcontext) -> None:  # noqa: ARG002
        """Repeat all calls of one recorded step, then run the backward pass of all of them and delete the gradients."""
        calls = self._calls[step % len(self._calls)]
        with part("forward"):
            outputs = [call.layer(self._inputs[call.shape, call.dtype], **call.keywords) for call in calls]
        with part("backward"):
            torch.autograd.backward(outputs, [self._gradients[call.shape, call.dtype] for call in calls])
        for layer in {call.layer for call in calls}:
            layer.zero_grad()
        for value in self._inputs.values():
            value.grad = None
