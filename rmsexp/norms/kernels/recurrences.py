"""The fused recurrences: one operator computes a whole sequence, another its backward pass through time.

*Summed inputs* are the product of a weight and a vector, plus a bias if there is one. The vector is the input of a time
step or the state, and the summed inputs from each are normalised separately. ``affine``, ``(2, 2, n)``, holds the gain
and shift of these norms: ``affine[0]`` for the input, ``affine[1]`` for the state. float16 and bfloat16 arguments are
cast to float32. Second derivatives are not available.

Padding has no effect on results and gradients, even if values there are not finite. The eager forms differ in this:
they multiply values at padding by 0, which gives NaN if these are not finite. Results are deterministic for a fixed
number of threads; with another number, gradients of parameters may differ by rounding errors.

All functions raise ValueError for tensors whose shapes, dtypes or devices do not fit together. The operators check
nothing: with other arguments they would read and write beyond the end of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from rmsexp.norms.kernels.forms import Form, StepForm

Optional = Tensor | None
Sizes = dict[str, int]

# The inputs of the operators, in their order, with their shapes. `key` and `value`: units of a key and of a value;
# `position`: positions of the source; the others are plain.
INPUTS = {
    "gru": {
        "x": "batch time 3*hidden",
        "h0": "batch hidden",
        "weight": "3*hidden hidden",
        "affine": "2 2 3*hidden",
        "bias": "3*hidden",
        "mask": "batch time",
    },
    "lstm": {
        "x": "batch time 4*hidden",
        "h0": "batch hidden",
        "c0": "batch hidden",
        "weight": "4*hidden hidden",
        "affine": "2 2 4*hidden",
        "cell_affine": "2 hidden",
        "mask": "batch time",
    },
    "decoder": {
        "x": "batch time 3*hidden",
        "s0": "batch hidden",
        "keys": "batch position key",
        "values": "batch position value",
        "w_first": "3*hidden hidden",
        "w_between": "key+3*hidden hidden",
        "w_context": "3*hidden value",
        "score": "key",
        "affine_first": "2 2 3*hidden",
        "affine_second": "2 2 3*hidden",
        "affine_query": "2 key",
        "bias": "3*hidden",
        "mask": "batch position",
    },
}
# The tensors that a forward operator returns and its backward operator reads, as cpp/recurrences.cpp and
# cpp/decoder.cpp describe them. The first are the states, with the initial one.
SAVED = {
    "gru": ("time+1 batch hidden", "time batch 3*hidden", "time batch 3*hidden", "time batch 8"),
    "lstm": (
        "time+1 batch hidden",
        "time+1 batch hidden",
        "time batch 4*hidden",
        "time batch 5*hidden",
        "time batch 6",
    ),
    "decoder": (
        "time+1 batch hidden",
        "time batch value",
        "time batch hidden",
        "time batch 3*hidden",
        "time batch key+3*hidden",
        "time batch 3*hidden",
        "time batch 3*hidden",
        "time batch 8",
        "time batch 3*hidden",
        "time batch 8",
        "time batch 2",
        "time batch position",
    ),
}


def gru(
    x: Tensor,
    h0: Tensor,
    weight: Tensor,
    bias: Optional,
    affine: Tensor,
    mask: Optional,
    form: StepForm,
    eps: float,
    *,
    reverse: bool,
) -> Tensor:
    """Return the states ``(batch, time, H)`` of a GRU (:class:`rmsexp.models.recurrent.GRU`).

    Args:
        x: Summed inputs from the input, before their norms, ``(batch, time, 3 H)``: reset gate, update gate, candidate.
        h0: Initial state, ``(batch, H)``, or ``(1, H)`` if it is the same for all rows of the batch.
        weight: Weight by which the state is multiplied, ``(3 H, H)``.
        bias: Added to the summed inputs from the state, ``(3 H,)``; None for no bias.
        affine: Gains and shifts, ``(2, 2, 3 H)``: ``affine[0]`` for ``x``, ``affine[1]`` for the state's summed inputs.
        mask: Padding mask, ``(batch, time)``. Where it is false, the state does not change. None for no padding.
        form: The norms of a step.
        eps: The eps of these norms.
        reverse: Whether positions are read from the last to the first. The states returned keep the order of ``x``.
    """
    states: Tensor = _run("gru", (x, h0, weight, affine, bias, mask), form, eps, reverse=reverse)
    return states


def lstm(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    weight: Tensor,
    affine: Tensor,
    cell_affine: Tensor,
    mask: Optional,
    form: StepForm,
    eps: float,
    *,
    reverse: bool,
) -> Tensor:
    """Return the hidden states ``(batch, time, H)`` of an LSTM (:class:`rmsexp.models.recurrent.LSTM`).

    Args:
        x: Summed inputs from the input, before their norm, ``(batch, time, 4 H)``: input gate, forget gate, output
            gate, candidate.
        h0: Initial hidden state, ``(batch, H)`` or ``(1, H)``.
        c0: Initial cell, ``(batch, H)`` or ``(1, H)``.
        weight: Weight by which the hidden state is multiplied, ``(4 H, H)``.
        affine: Gains and shifts, ``(2, 2, 4 H)``: ``affine[0]`` for ``x``, ``affine[1]`` for the state's summed inputs.
        cell_affine: Gain and shift of the cell's norm, ``(2, H)``.

    For the other arguments see :func:`gru`.
    """
    states: Tensor = _run("lstm", (x, h0, c0, weight, affine, cell_affine, mask), form, eps, reverse=reverse)
    return states


def decoder(
    x: Tensor,
    s0: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    w_first: Tensor,
    w_between: Tensor,
    bias: Optional,
    w_context: Tensor,
    score: Tensor,
    affine_first: Tensor,
    affine_second: Tensor,
    affine_query: Tensor,
    form: StepForm,
    query_form: Form,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Return states ``(batch, time, H)`` and contexts ``(batch, time, A)`` of a conditional GRU with attention.

    At each time step, a first GRU updates the state from the previous token, attention reads the source with a query
    computed from that state, and a second GRU updates the state from the attention's context. The state after the
    second GRU is the one returned.

    S source positions, C units of a key and of the query, A units of a value and of a context.

    Args:
        x: Summed inputs from the previous tokens, before their norms, ``(batch, time, 3 H)``.
        s0: Initial state, ``(batch, H)``.
        keys: Keys of the source, ``(batch, S, C)``.
        values: Values of the source, ``(batch, S, A)``.
        mask: Padding mask of the source, ``(batch, S)``, false on padding.
        w_first: Weight of the first GRU for its state, ``(3 H, H)``.
        w_between: Weight for the state between the GRUs, ``(C + 3 H, H)``: C rows give the query, the others the summed
            inputs of the second GRU from its state.
        bias: Added to the summed inputs of the second GRU from its state, ``(3 H,)``; None for no bias.
        w_context: Weight of the second GRU for the context, ``(3 H, A)``.
        score: Vector that maps the attention's hidden layer to energies, ``(C,)``.
        affine_first: Gains and shifts of the first GRU, ``(2, 2, 3 H)``.
        affine_second: Gains and shifts of the second GRU, ``(2, 2, 3 H)``.
        affine_query: Gain and shift of the query, ``(2, C)``.
        form: The norms of both GRUs.
        query_form: The norm of the query; the ``eps`` in it is not used.
        eps: The eps of all norms.
    """
    affine = (affine_first, affine_second, affine_query)
    inputs = (x, s0, keys, values, w_first, w_between, w_context, score, *affine, bias, mask)
    forms = (*form, query_form.kind, query_form.k, query_form.inside)
    states, contexts = _run("decoder", inputs, forms, eps, reverse=False)
    return states, contexts


def _run(cell: str, inputs: Sequence[Optional], form: Sequence[int], eps: float, *, reverse: bool) -> Any:
    """Return the results of an operator for these inputs, in the dtype of ``x``; under autocast, in float32."""
    x = inputs[0]
    assert x is not None
    named = dict(zip(INPUTS[cell], inputs, strict=True))
    for name in ("h0", "c0", "mask"):  # which may be the same for all rows of the batch
        tensor = named.get(name)
        if tensor is not None and tensor.dim() == 2 and tensor.shape[0] == 1:
            named[name] = tensor.expand(x.shape[0], -1)
    wide = {name: _wide(tensor) for name, tensor in named.items()}
    check(cell, wide)
    results = _Sequence.apply(cell, reverse, list(map(int, form)), eps, *wide.values())
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return results
    return tuple(result.to(x.dtype) for result in results) if isinstance(results, tuple) else results.to(x.dtype)


def _wide(tensor: Optional) -> Optional:
    """Return the tensor, in float32 if it is float16 or bfloat16."""
    return tensor.float() if tensor is not None and tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def check(cell: str, inputs: Mapping[str, Optional]) -> None:
    """Check shapes, dtypes and devices of an operator's inputs. Raises: ValueError."""
    sizes, like = sizes_of(cell, inputs), inputs["x"]
    assert like is not None
    for name, tensor in inputs.items():
        if tensor is None:
            continue
        expected = INPUTS[cell][name]
        if len(tensor.shape) != len(expected.split()) or tuple(tensor.shape) != shape(expected, sizes):
            wanted = ", ".join(expected.split())
            raise ValueError(f"expected {name} of shape ({wanted}), with {sizes}; got {tuple(tensor.shape)}")
        dtype = torch.bool if name == "mask" else like.dtype
        if tensor.dtype != dtype or tensor.device != like.device:
            got = f"{tensor.dtype} on {tensor.device}"
            raise ValueError(f"expected {name} of dtype {dtype} on device {like.device}, got {got}")


def sizes_of(cell: str, inputs: Mapping[str, Optional]) -> Sizes:
    """Return the sizes of the axes that an operator's inputs name, such as "batch"."""
    sizes: Sizes = {}
    for name, tensor in inputs.items():
        for axis, size in zip(INPUTS[cell][name].split(), () if tensor is None else tensor.shape, strict=False):
            if axis.isalpha():
                sizes.setdefault(axis, size)
    return sizes


def shape(axes: str, sizes: Sizes) -> tuple[int, ...]:
    """Return the shape that a string such as "time+1 batch 3*hidden" describes."""
    return tuple(
        sum(
            math.prod(int(factor) if factor.isdigit() else sizes.get(factor, -1) for factor in term.split("*"))
            for term in axis.split("+")
        )
        for axis in axes.split()
    )


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which the operators' matrix products keep the dtype of their inputs.

    The device "meta" has no autocast.
    """
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


class _Sequence(torch.autograd.Function):
    """An operator over whole sequences, ``cell``: a key of ``INPUTS``. ``inputs``: those, in this order."""

    @staticmethod
    def forward(ctx: Any, cell: str, reverse: bool, form: list[int], eps: float, *inputs: Optional) -> Any:
        x, *others = inputs
        assert x is not None
        tensors = [x, *(None if tensor is None else tensor.contiguous() for tensor in others)]
        with _without_autocast(x.device):
            saved = getattr(torch.ops.rmsexp, f"{cell}_forward")(tensors, reverse, form, eps)
        ctx.save_for_backward(*tensors, *saved)
        ctx.cell, ctx.options = cell, (reverse, form, eps)
        # the initial state is the first, or with `reverse` the last
        states = (saved[0][:-1] if reverse else saved[0][1:]).transpose(0, 1)
        return (states, saved[1].transpose(0, 1)) if cell == "decoder" else states

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Optional, ...]:
        if torch.is_grad_enabled():  # true in a backward pass only with create_graph=True
            raise RuntimeError("the fused recurrences have no second derivatives; use norm.impl=eager")
        count = len(INPUTS[ctx.cell])
        tensors, saved = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        with _without_autocast(tensors[0].device):
            results = getattr(torch.ops.rmsexp, f"{ctx.cell}_backward")(gradients, tensors, saved, *ctx.options)
        present = [None if tensor is None else result for tensor, result in zip(tensors, results, strict=False)]
        return None, None, None, None, *present, None  # none for the mask
