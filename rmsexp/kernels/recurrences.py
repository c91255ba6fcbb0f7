"""The fused recurrences: whole sequences in one operator, with hand-derived backward passes through time.

``affine`` holds gains and shifts of the norms of a step: ``(2, 2, n)``, of input and state, gain and shift. A form is
(kind, units in the statistic of the gates, of candidate or cell, whether eps is inside the root). The operators compute
in float32 or float64; under autocast their inputs are cast to float32. They have no second derivatives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Optional = Tensor | None


def gru(
    x: Tensor,
    h0: Tensor,
    weight: Tensor,
    bias: Optional,
    affine: Tensor,
    mask: Optional,
    form: list[int],
    eps: float,
    *,
    reverse: bool,
) -> Tensor:
    """The states ``(batch, time, H)`` of a GRU (:class:`rmsexp.models.recurrent.GRU`).

    ``x``: ``(batch, time, 3 H)``, the input's products (reset, update, candidate), before their norms. ``weight``:
    ``(3 H, H)``, of the state; ``bias``: ``(3 H,)``, added to its product. Where ``mask``, ``(batch, time)``, is false
    the state stays. With ``reverse`` positions are read from the last to the first.
    """
    begin, real = _for_each_row(x, mask, h0)
    tensors = _wide(x, begin, weight, bias, affine)
    states: Tensor = _GRU.apply(*tensors, real, reverse, form, eps)
    return _narrow(states, x)


def lstm(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    weight: Tensor,
    affine: Tensor,
    cell_affine: Tensor,
    mask: Optional,
    form: list[int],
    eps: float,
    *,
    reverse: bool,
) -> Tensor:
    """The hidden states ``(batch, time, H)`` of an LSTM (:class:`rmsexp.models.recurrent.LSTM`).

    ``x``: ``(batch, time, 4 H)``; ``weight``: ``(4 H, H)``; ``cell_affine``: ``(2, H)``; the rest as in :func:`gru`.
    """
    *begin, real = _for_each_row(x, mask, h0, c0)
    tensors = _wide(x, *begin, weight, affine, cell_affine)
    states: Tensor = _LSTM.apply(*tensors, real, reverse, form, eps)
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
    form: list[int],
    query_form: list[int],
    eps: float,
) -> tuple[Tensor, Tensor]:
    """States ``(batch, time, H)`` and contexts ``(batch, time, A)`` of a conditional GRU with attention.

    ``x``: ``(batch, time, 3 H)``, products of the previous tokens; ``keys``: ``(batch, S, C)``; ``values``:
    ``(batch, S, A)``; ``mask``: ``(batch, S)``, true on the source; ``w_between``: ``(C + 3 H, H)``, query and second
    GRU; ``bias``: ``(3 H,)``, of the second GRU; ``w_context``: ``(3 H, A)``; ``score``: ``(C,)``;
    ``affine_query``: ``(2, C)``; ``query_form``: (kind, units in the statistic, whether eps is inside the root).
    """
    tensors = _wide(x, s0, keys, values)
    weights = _wide(w_first, w_between, w_context, score, affine_first, affine_second, affine_query, bias)
    states, contexts = _Decoder.apply(*tensors, mask.contiguous(), *weights, form, query_form, eps)
    return _narrow(states, x), _narrow(contexts, x)


def _for_each_row(x: Tensor, mask: Optional, *states: Tensor) -> tuple[Optional, ...]:
    """States and mask with the batch and time of ``x``, where they are given once for all."""
    return *(state.expand(len(x), -1) for state in states), None if mask is None else mask.expand(x.shape[:2])


def _wide(*tensors: Optional) -> tuple[Optional, ...]:
    """In float32 or float64, which the kernels compute in."""
    return tuple(
        tensor.float() if tensor is not None and tensor.dtype in (torch.float16, torch.bfloat16) else tensor
        for tensor in tensors
    )


def _narrow(result: Tensor, x: Tensor) -> Tensor:
    """In the type of the input; under autocast what was computed in float32 stays so."""
    return result if torch.is_autocast_enabled(x.device.type) else result.to(x.dtype)


def _refuse_second_derivative() -> None:
    if torch.is_grad_enabled():  # only for create_graph=True
        raise RuntimeError("the fused recurrences have no second derivatives; use norm.impl=eager")


def _without_autocast(device: torch.device) -> torch.autocast:
    """Products inside the operators stay in the type of their inputs."""
    return torch.autocast(device.type, enabled=False)


def _positions(states: Tensor, *, reverse: bool) -> Tensor:
    """The states after each position, ``(batch, time, H)``, of those that lie in the order of reading."""
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
        form: list[int],
        eps: float,
    ) -> Tensor:
        affine, bias = affine.contiguous(), None if bias is None else bias.contiguous()
        with _without_autocast(x.device):
            saved = torch.ops.rmsexp.gru_forward(x, h0, weight, bias, affine, mask, reverse, form, eps)
        ctx.save_for_backward(x, weight, affine, mask, *saved)
        ctx.biased, ctx.reverse, ctx.form, ctx.eps = bias is not None, reverse, form, eps
        return _positions(saved[0], reverse=reverse)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Optional, ...]:
        _refuse_second_derivative()
        x, weight, affine, mask, *saved = ctx.saved_tensors
        with _without_autocast(x.device):
            dx, dh0, dweight, dbias, daffine = torch.ops.rmsexp.gru_backward(
                dout, x, weight, ctx.biased, affine, mask, ctx.reverse, ctx.form, ctx.eps, *saved
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
        form: list[int],
        eps: float,
    ) -> Tensor:
        affine, cell_affine = affine.contiguous(), cell_affine.contiguous()
        with _without_autocast(x.device):
            saved = torch.ops.rmsexp.lstm_forward(x, h0, c0, weight, affine, cell_affine, mask, reverse, form, eps)
        ctx.save_for_backward(x, weight, affine, cell_affine, mask, *saved)
        ctx.reverse, ctx.form, ctx.eps = reverse, form, eps
        return _positions(saved[0], reverse=reverse)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Optional, ...]:
        _refuse_second_derivative()
        x, weight, affine, cell_affine, mask, *saved = ctx.saved_tensors
        with _without_autocast(x.device):
            gradients = torch.ops.rmsexp.lstm_backward(
                dout, x, weight, affine, cell_affine, mask, ctx.reverse, ctx.form, ctx.eps, *saved
            )
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
        form: list[int],
        query_form: list[int],
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        keys, values, w_context, score = (part.contiguous() for part in (keys, values, w_context, score))
        affine = [part.contiguous() for part in (affine_first, affine_second, affine_query)]
        bias = None if bias is None else bias.contiguous()
        with _without_autocast(x.device):
            saved = torch.ops.rmsexp.decoder_forward(
                x, s0, keys, values, mask, w_first, w_between, bias, w_context, score, *affine, form, query_form, eps
            )
        ctx.save_for_backward(x, keys, values, mask, w_first, w_between, w_context, score, *affine, *saved)
        ctx.biased, ctx.options = bias is not None, (form, query_form, eps)
        return _positions(saved[0], reverse=False), saved[1].transpose(0, 1)

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
        of_bias = dbias if ctx.biased else None
        return dx, ds0, dkeys, dvalues, None, *weights, of_bias, None, None, None
