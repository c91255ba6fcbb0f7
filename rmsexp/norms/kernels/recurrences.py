"""The fused recurrences: one operator computes a whole sequence, another its backward pass through time.

*Summed inputs* are the product of a weight and a vector, plus a bias if there is one. The vector is the input of a time
step or the state, and the summed inputs from each are normalised separately. ``affine``, ``(2, 2, n)``, holds the gain
and shift of these norms: ``affine[0]`` for the input, ``affine[1]`` for the state. float16 and bfloat16 arguments are
cast to float32. Second derivatives are not available.

Padding has no effect on results and gradients, even if values there are not finite. The eager forms differ in this:
they multiply values at padding by 0, which gives NaN if these are not finite. Results are deterministic for a fixed
number of threads; with another number, gradients of parameters may differ by rounding errors.

All functions raise ValueError for tensors whose shapes, dtypes or devices do not fit together.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from rmsexp.norms.kernels.forms import Form, SavedDecoder, SavedGRU, SavedLSTM, StepForm

Optional = Tensor | None


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
    initial, mask = _broadcast(x, mask, h0=h0)
    tensors = _wide(x, initial, weight, bias, affine)
    states: Tensor = _GRU.apply(*tensors, mask, reverse, form, eps)
    return _narrow(states, x)


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
    *initial, mask = _broadcast(x, mask, h0=h0, c0=c0)
    tensors = _wide(x, *initial, weight, affine, cell_affine)
    states: Tensor = _LSTM.apply(*tensors, mask, reverse, form, eps)
    return _narrow(states, x)


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
    tensors = _wide(x, s0, keys, values)
    weights = _wide(w_first, w_between, w_context, score, affine_first, affine_second, affine_query, bias)
    query = [query_form.kind, query_form.k, int(query_form.inside)]
    states, contexts = _Decoder.apply(*tensors, mask.contiguous(), *weights, form, query, eps)
    return _narrow(states, x), _narrow(contexts, x)


def _broadcast(x: Tensor, mask: Optional, **states: Tensor) -> tuple[Optional, ...]:
    """Return the states and last the mask, each broadcast from a batch of one to the batch size of ``x``.

    Raises: ValueError, which names the argument, if a shape does not fit to that of ``x``.
    """
    batch = x.shape[0]
    for name, state in states.items():
        if state.dim() != 2 or state.shape[0] not in (1, batch):
            raise ValueError(f"expected {name} of shape ({batch}, units) or (1, units), got {tuple(state.shape)}")
    if mask is not None and (mask.shape[1:] != x.shape[1:2] or mask.shape[0] not in (1, batch)):
        expected = f"({batch}, time) or (1, time), with the time of x, {tuple(x.shape)}"
        raise ValueError(f"expected mask of shape {expected}; got {tuple(mask.shape)}")
    return *(state.expand(batch, -1) for state in states.values()), None if mask is None else mask.expand(x.shape[:2])


def _wide(*tensors: Optional) -> tuple[Optional, ...]:
    """Return the tensors, with float16 and bfloat16 cast to float32."""
    return tuple(
        tensor.float() if tensor is not None and tensor.dtype in (torch.float16, torch.bfloat16) else tensor
        for tensor in tensors
    )


def _narrow(result: Tensor, x: Tensor) -> Tensor:
    """Return the result in the dtype of ``x``, except under autocast, where the result is returned unchanged."""
    device = x.device.type
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return result if autocast else result.to(x.dtype)


def _refuse_second_derivative() -> None:
    if torch.is_grad_enabled():  # true in a backward pass only with create_graph=True
        raise RuntimeError("the fused recurrences have no second derivatives; use norm.impl=eager")


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which the operators' matrix products keep the dtype of their inputs.

    The device "meta" has no autocast.
    """
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def _positions(states: Tensor, *, reverse: bool) -> Tensor:
    """Return the states, ``(time + 1, batch, H)``, without the initial one, as ``(batch, time, H)``.

    The initial state is the first, or with ``reverse`` the last.
    """
    return (states[:-1] if reverse else states[1:]).transpose(0, 1)


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor,
        weight: Tensor,
        bias: Optional,
        affine: Tensor,
        mask: Optional,
        reverse: bool,
        form: StepForm,
        eps: float,
    ) -> Tensor:
        affine, bias = affine.contiguous(), None if bias is None else bias.contiguous()
        with _without_autocast(x.device):
            saved = SavedGRU(*torch.ops.rmsexp.gru_forward(x, h0, weight, bias, affine, mask, reverse, form, eps))
        ctx.save_for_backward(x, weight, affine, mask, *saved)
        ctx.biased, ctx.options = bias is not None, (reverse, form, eps)
        return _positions(saved.states, reverse=reverse)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Optional, ...]:
        _refuse_second_derivative()
        x, weight, affine, mask, *saved = ctx.saved_tensors
        with _without_autocast(x.device):
            dx, dh0, dweight, dbias, daffine = torch.ops.rmsexp.gru_backward(
                dout, x, weight, ctx.biased, affine, mask, *ctx.options, saved
            )
        return dx, dh0, dweight, dbias if ctx.biased else None, daffine, None, None, None, None


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor,
        c0: Tensor,
        weight: Tensor,
        affine: Tensor,
        cell_affine: Tensor,
        mask: Optional,
        reverse: bool,
        form: StepForm,
        eps: float,
    ) -> Tensor:
        affine, cell_affine = affine.contiguous(), cell_affine.contiguous()
        with _without_autocast(x.device):
            tensors = (x, h0, c0, weight, affine, cell_affine, mask)
            saved = SavedLSTM(*torch.ops.rmsexp.lstm_forward(*tensors, reverse, form, eps))
        ctx.save_for_backward(x, weight, affine, cell_affine, mask, *saved)
        ctx.options = (reverse, form, eps)
        return _positions(saved.hidden, reverse=reverse)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Optional, ...]:
        _refuse_second_derivative()
        x, weight, affine, cell_affine, mask, *saved = ctx.saved_tensors
        with _without_autocast(x.device):
            gradients = torch.ops.rmsexp.lstm_backward(dout, x, weight, affine, cell_affine, mask, *ctx.options, saved)
        return *gradients, None, None, None, None


class _Decoder(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        s0: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        w_first: Tensor,
        w_between: Tensor,
        w_context: Tensor,
        score: Tensor,
        affine_first: Tensor,
        affine_second: Tensor,
        affine_query: Tensor,
        bias: Optional,
        form: StepForm,
        query_form: list[int],
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        keys, values, w_context, score = (part.contiguous() for part in (keys, values, w_context, score))
        affine = [part.contiguous() for part in (affine_first, affine_second, affine_query)]
        bias = None if bias is None else bias.contiguous()
        with _without_autocast(x.device):
            tensors = (x, s0, keys, values, mask, w_first, w_between, bias, w_context, score, *affine)
            saved = SavedDecoder(*torch.ops.rmsexp.decoder_forward(*tensors, form, query_form, eps))
        ctx.save_for_backward(x, keys, values, mask, w_first, w_between, w_context, score, *affine, *saved)
        ctx.biased, ctx.options = bias is not None, (form, query_form, eps)
        return _positions(saved.states, reverse=False), saved.contexts.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, dstates: Tensor, dcontexts: Tensor) -> tuple[Optional, ...]:
        _refuse_second_derivative()
        x, keys, values, mask, w_first, w_between, w_context, score, *others = ctx.saved_tensors
        affine, saved = others[:3], others[3:]
        with _without_autocast(x.device):
            dx, ds0, dkeys, dvalues, dw_first, dw_between, dbias, dw_context, dscore, *daffine = (
                torch.ops.rmsexp.decoder_backward(
                    *(dstates, dcontexts, x, keys, values, mask, w_first, w_between, ctx.biased, w_context, score),
                    *(*affine, *ctx.options, saved),
                )
            )
        weights = (dw_first, dw_between, dw_context, dscore, *daffine)
        return dx, ds0, dkeys, dvalues, None, *weights, dbias if ctx.biased else None, None, None, None
