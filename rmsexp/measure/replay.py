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


class Layout(NamedTuple):
    """Shape and dtype of a tensor, and the order of its axes in memory, as strides without gaps."""

    shape: torch.Size
    dtype: torch.dtype
    strides: tuple[int, ...]


class LayerCall(NamedTuple):
    """A recorded call: the layer, the layout of its input, and the keyword arguments, such as a mask."""

    layer: nn.Module
    layout: Layout
    keywords: dict[str, Any]


@contextmanager
def record_calls(model: nn.Module) -> Iterator[list[LayerCall]]:
    """Record, in order, the calls of the model's normalisers and weight re-parametrisations inside the context."""
    calls: list[LayerCall] = []

    def append(layer: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        x = inputs[0]
        calls.append(LayerCall(layer, Layout(x.shape, x.dtype, torch.empty_like(x, device="meta").stride()), keywords))

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


class _Repeated(NamedTuple):
    """A call that is repeated: its layer and keyword arguments, its input, and the gradient of its output."""

    layer: nn.Module
    keywords: dict[str, Any]
    x: Tensor
    gradient: Tensor


class Replay:
    """Repeats recorded calls, forward and backward, on random values in the same layouts.

    ``calls``: the calls of each recorded step; step ``i`` of the replay repeats those of entry ``i % len(calls)``.
    ``draw``: returns random values of a given shape and dtype.
    """

    def __init__(self, calls: Sequence[list[LayerCall]], draw: Callable[[torch.Size, torch.dtype], Tensor]) -> None:
        layouts = {call.layout for call in chain.from_iterable(calls)}
        drawn = {each: (_laid_out(draw, each), _laid_out(draw, each)) for each in layouts}
        self._steps = [[_repeated(call, *drawn[call.layout]) for call in step] for step in calls]

    def take(self, step: int, batches: object, part: Part = nullcontext) -> None:  # noqa: ARG002
        """Repeat all calls of one recorded step, then run the backward pass of all of them and delete the gradients."""
        calls = self._steps[step % len(self._steps)]
        with part("forward"):
            outputs = [call.layer(call.x, **call.keywords) for call in calls]
        with part("backward"):
            torch.autograd.backward(outputs, [call.gradient for call in calls])
        for layer in {call.layer for call in calls}:
            layer.zero_grad()


def _laid_out(draw: Callable[[torch.Size, torch.dtype], Tensor], layout: Layout) -> Tensor:
    drawn = draw(layout.shape, layout.dtype)
    return drawn.new_empty_strided(layout.shape, layout.strides).copy_(drawn)


def _repeated(call: LayerCall, values: Tensor, gradient: Tensor) -> _Repeated:
    """Return a call with an input of its own, which shares the memory of ``values``.

    If calls had one input, autograd would add up their gradients, which a training step does not do. The gradient is
    dropped at once, so that the gradient of the next call can reuse its memory, as in a training step.
    """
    x = values.detach().requires_grad_()
    x.register_post_accumulate_grad_hook(_drop_gradient)
    return _Repeated(call.layer, call.keywords, x, gradient)


def _drop_gradient(x: Tensor) -> None:
    x.grad = None
