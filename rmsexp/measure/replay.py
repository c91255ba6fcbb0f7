"""Record the calls of a model's norm layers in some steps, then repeat these calls without the rest of the model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rmsexp.norms.base import Identity, Linear, Normaliser
from rmsexp.train.step import Part


class LayerCall(NamedTuple):
    """A call of a layer with keyword arguments, such as a mask.

    ``x``: its input; of a recorded call on the device "meta", with shape, dtype and the order of the axes in memory, as
    strides without gaps. ``gradient``: that of its output, of a call that is repeated.
    """

    layer: nn.Module
    keywords: dict[str, Any]
    x: Tensor
    gradient: Tensor | None = None


@contextmanager
def record_calls(model: nn.Module) -> Iterator[list[LayerCall]]:
    """Record, in order, the calls of the model's normalisers and weight re-parametrisations inside the context."""
    calls: list[LayerCall] = []

    def append(layer: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        calls.append(LayerCall(layer, keywords, torch.empty_like(inputs[0], device="meta")))

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
    """Repeats recorded calls, forward and backward, on random values in the same layouts.

    ``calls``: the calls of each recorded step; step ``i`` of the replay repeats those of entry ``i % len(calls)``.
    ``draw``: returns random values of a given shape and dtype.
    """

    def __init__(self, calls: Sequence[list[LayerCall]], draw: Callable[[torch.Size, torch.dtype], Tensor]) -> None:
        drawn: dict[Any, list[Tensor]] = {}  # by layout: values, and gradients of the output

        def repeated(call: LayerCall) -> LayerCall:
            x = call.x
            layout = x.shape, x.dtype, x.stride()
            if layout not in drawn:
                values = draw(x.shape, x.dtype)
                drawn[layout] = [values.new_empty_strided(x.shape, x.stride()).copy_(values) for _ in range(2)]
            # An input of its own, which shares the memory: if calls had one input, autograd would add up their
            # gradients, which a training step does not do. The gradient is dropped at once, so that the gradient of
            # the next call can reuse its memory, as in a training step.
            own = drawn[layout][0].detach().requires_grad_()
            own.register_post_accumulate_grad_hook(_drop_gradient)
            return call._replace(x=own, gradient=drawn[layout][1])

        self._steps = [[repeated(call) for call in step] for step in calls]

    def take(self, step: int, batches: object, part: Part = nullcontext) -> None:  # noqa: ARG002
        """Repeat all calls of one recorded step, then run the backward pass of all of them and delete the gradients."""
        calls = self._steps[step % len(self._steps)]
        with part("forward"):
            outputs = [call.layer(call.x, **call.keywords) for call in calls]
        with part("backward"):
            torch.autograd.backward(outputs, [call.gradient for call in calls])
        for layer in {call.layer for call in calls}:
            layer.zero_grad()


def _drop_gradient(x: Tensor) -> None:
    x.grad = None
