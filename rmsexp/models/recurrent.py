"""Recurrent layers with norms: GRU and LSTM.

Shapes: input ``(batch, time, input_size)``; output ``(batch, time, hidden_size)``; masks ``(batch, time)``, true on
real positions; one time step ``(batch, …)``. In formulas x is the input, h the hidden state, c the cell, N a norm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp import kernels
from rmsexp.norms import Linear, Norm, Normaliser

State = tuple[Tensor, ...]  # (batch, hidden_size) each; the first is the hidden state, which is the output
Part = tuple[Tensor, ...]  # the terms of the transition that depend on the input alone, for one time step or for all
W = TypeVar("W")


class Recurrence(nn.Module, ABC, Generic[W]):
    """A recurrent layer. It runs step by step or, with a fused norm, in one operator for the whole sequence.

    ``W`` is the type of the layer's effective weights, which are computed once per sequence.
    """

    states = 1  # number of tensors in a state

    def __init__(self, norm: Norm, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.fused = norm.effective_impl == "fused"

    def forward(
        self, x: Tensor, mask: Tensor | None = None, initial: State | None = None, *, reverse: bool = False
    ) -> Tensor:
        """Return the hidden states ``(batch, time, hidden_size)``, each at the position of its input.

        Padding is at the end of a sequence and leaves the state unchanged. ``initial``: the state before the first
        step; None means zeros. With ``reverse`` each sequence is read from its last real position to its first; the
        output on padding is then undefined.
        """
        if self.fused:
            return self.run_fused(x, mask, self.zeros(x) if initial is None else initial, reverse=reverse)
        order = reversal(mask, x) if reverse else None
        if order is not None:
            x = x.gather(1, order.expand_as(x))
        weights = self.weights()
        parts = self.read(x, weights, mask, range(x.shape[1]))
        state = self.zeros(x) if initial is None else initial
        hidden_states = []
        for step, part in enumerate(zip(*(steps.unbind(1) for steps in parts), strict=True)):
            real = None if mask is None else mask[:, step]
            hidden, *others = self.transition(part, state, weights, real, step)
            state = (hidden if real is None else torch.where(real.unsqueeze(-1), hidden, state[0]), *others)
            hidden_states.append(state[0])
        stacked = torch.stack(hidden_states, 1)
        return stacked if order is None else stacked.gather(1, order.expand_as(stacked))

    def zeros(self, x: Tensor) -> State:
        """Return the default initial state, zeros."""
        return (x.new_zeros(x.shape[0], self.hidden_size),) * self.states

    @abstractmethod
    def run_fused(self, x: Tensor, mask: Tensor | None, state: State, *, reverse: bool) -> Tensor:
        """Return the hidden states of whole sequences, computed by one fused operator."""

    @abstractmethod
    def weights(self) -> W:
        """Return the effective weights: the weights after weight normalisation, if there is one."""

    @abstractmethod
    def read(self, x: Tensor, weights: W, mask: Tensor | None, steps: int | range) -> Part:
        """Return the terms of the transition that depend on the input alone.

        ``steps`` is the time step of an ``x`` of shape ``(batch, input_size)``, or the range of time steps of an ``x``
        of shape ``(batch, time, input_size)``.
        """

    @abstractmethod
    def transition(self, part: Part, state: State, weights: W, mask: Tensor | None, step: int) -> State:
        """Return the next state. ``part``: the result of :meth:`read` for this step.

        On padding the caller restores the hidden state; this method leaves the state's other tensors unchanged there.
        """


class GRUWeights(NamedTuple):
    """Weights of a GRU. Those of the gates r and u have ``2 hidden_size`` rows, those of the candidate ``hidden_size``.

    ``_x``: ``input_size`` columns, for the input. ``_h``: ``hidden_size`` columns, for the state.
    """

    gates_x: Tensor
    gates_h: Tensor
    candidate_x: Tensor
    candidate_h: Tensor


class GRU(Recurrence[GRUWeights]):
    """A gated recurrent unit with norms at four sites, as in Nematus.

    ``[r, u] = sigmoid(N(W x + b) + N(U h))``; ``c = tanh(N(W' x + b') + r * N(U' h))``; ``h' = u * h + (1 - u) * c``.
    One norm covers both gates; the terms of the input and of the state have separate norms; the reset gate r is
    applied after the norm. Without a norm this is ``torch.nn.GRU`` with one of its two biases at zero.

    Args:
        norm: creates the layers.
        name: beginning of the names of the sites.
        bias_of_state: add the biases to ``U h`` and ``U' h`` instead of ``W x`` and ``W' x``, as in the second GRU of
            the decoder of Nematus.
    """

    def __init__(
        self, norm: Norm, name: str, input_size: int, hidden_size: int, *, bias_of_state: bool = False
    ) -> None:
        super().__init__(norm, hidden_size)
        bias_of_input = not bias_of_state
        self.gates_x = norm.linear(f"{name}.gates_x", input_size, 2 * hidden_size, bias=bias_of_input, blocks=2)
        self.gates_h = norm.linear(f"{name}.gates_h", hidden_size, 2 * hidden_size, bias=bias_of_state, blocks=2)
        self.candidate_x = norm.linear(f"{name}.candidate_x", input_size, hidden_size, bias=bias_of_input)
        self.candidate_h = norm.linear(f"{name}.candidate_h", hidden_size, hidden_size, bias=bias_of_state)

    def weights(self) -> GRUWeights:
        sites = (self.gates_x, self.gates_h, self.candidate_x, self.candidate_h)
        return GRUWeights(*(site.effective_weight() for site in sites))

    def read(self, x: Tensor, weights: GRUWeights, mask: Tensor | None, steps: int | range) -> Part:
        return (
            self.gates_x.norm(self.gates_x.map(x, weights.gates_x), mask=mask, steps=steps),
            self.candidate_x.norm(self.candidate_x.map(x, weights.candidate_x), mask=mask, steps=steps),
        )

    def transition(self, part: Part, state: State, weights: GRUWeights, mask: Tensor | None, step: int) -> State:
        (hidden,) = state
        gates_h = self.gates_h.norm(self.gates_h.map(hidden, weights.gates_h), mask=mask, steps=step)
        candidate_h = self.candidate_h.norm(self.candidate_h.map(hidden, weights.candidate_h), mask=mask, steps=step)
        gates_x, candidate_x = part
        reset, update = torch.sigmoid(gates_x + gates_h).chunk(2, -1)
        candidate = torch.tanh(torch.addcmul(candidate_x, reset, candidate_h))
        return (torch.addcmul(candidate, update, hidden - candidate),)

    def run_fused(self, x: Tensor, mask: Tensor | None, state: State, *, reverse: bool) -> Tensor:
        weights, (hidden,) = self.weights(), state
        return kernels.gru(
            self.products(x, weights),
            hidden,
            torch.cat([weights.gates_h, weights.candidate_h]),
            self.bias_of_state(),
            self.affine(),
            mask,
            *self.form(),
            reverse=reverse,
        )

    def products(self, x: Tensor, weights: GRUWeights) -> Tensor:
        """Return ``W x + b`` of gates and candidate, before the norms, ``(…, 3 hidden_size)``."""
        return F.linear(x, torch.cat([weights.gates_x, weights.candidate_x]), biases(self.gates_x, self.candidate_x))

    def bias_of_state(self) -> Tensor | None:
        """Return the biases that are added to ``U h`` and ``U' h``, ``(3 hidden_size,)``; None if there are none."""
        return biases(self.gates_h, self.candidate_h)

    def affine(self) -> Tensor:
        """Return gains and shifts of the four norms, ``(2, 2, 3 hidden_size)``.

        The first axis is input and state, the second gain and shift, the third the units of gates and candidate.
        """
        return affine((self.gates_x, self.candidate_x), (self.gates_h, self.candidate_h))

    def form(self) -> tuple[kernels.StepForm, float]:
        """Return the kernels' description of the norms, and the norms' eps."""
        return form(self.gates_h.norm, 2 * self.hidden_size, self.candidate_h.norm, self.hidden_size)


class LSTMWeights(NamedTuple):
    """Weights of an LSTM, ``(4 hidden_size, input_size)`` and ``(4 hidden_size, hidden_size)``: blocks i, f, o, g."""

    gates_x: Tensor
    gates_h: Tensor


class LSTM(Recurrence[LSTMWeights]):
    """A long short-term memory with norms at three sites (Ba et al. 2016, Eqs. 20 to 22).

    ``[i, f, o, g] = N(W x + b) + N(U h) + b``; ``c' = sigmoid(f) * c + sigmoid(i) * tanh(g)``;
    ``h' = sigmoid(o) * tanh(N(c'))``. One norm covers all four blocks. The cell that goes to the next step is c',
    without norm. The same bias vector b is used twice, as in the published attentive reader. Without a norm this is
    ``torch.nn.LSTM`` with two equal biases.

    Args:
        norm: creates the layers.
        name: beginning of the names of the sites.
    """

    states = 2  # hidden state, cell

    def __init__(self, norm: Norm, name: str, input_size: int, hidden_size: int) -> None:
        super().__init__(norm, hidden_size)
        width = 4 * hidden_size
        self.gates_x = norm.linear(f"{name}.gates_x", input_size, width, bias=False, then_bias=True, blocks=4)
        self.gates_h = norm.linear(f"{name}.gates_h", hidden_size, width, bias=False, then_bias=True, blocks=4)
        self.cell = norm.value(f"{name}.cell", hidden_size)
        self.bias = nn.Parameter(torch.zeros(width))

    def weights(self) -> LSTMWeights:
        return LSTMWeights(self.gates_x.effective_weight(), self.gates_h.effective_weight())

    def read(self, x: Tensor, weights: LSTMWeights, mask: Tensor | None, steps: int | range) -> Part:
        products = F.linear(x, weights.gates_x, self.bias)
        return (self.gates_x.norm(products, mask=mask, steps=steps) + self.bias,)

    def transition(self, part: Part, state: State, weights: LSTMWeights, mask: Tensor | None, step: int) -> State:
        hidden, cell = state
        gates = part[0] + self.gates_h.norm(self.gates_h.map(hidden, weights.gates_h), mask=mask, steps=step)
        i, f, o, g = gates.chunk(4, -1)
        new = torch.addcmul(torch.sigmoid(f) * cell, torch.sigmoid(i), torch.tanh(g))
        if mask is not None:  # before the norm, whose statistics with norm.padding=include cover the cells on padding
            new = torch.where(mask.unsqueeze(-1), new, cell)
        return torch.sigmoid(o) * torch.tanh(self.cell(new, mask=mask, steps=step)), new

    def run_fused(self, x: Tensor, mask: Tensor | None, state: State, *, reverse: bool) -> Tensor:
        weights, size, (hidden, cell) = self.weights(), self.hidden_size, state
        gains_and_shifts = affine((self.gates_x,), (self.gates_h,))
        is_input_shift = torch.zeros_like(gains_and_shifts)
        is_input_shift[0, 1] = 1.0  # the bias after the norms is added to the shift of the input's norm
        return kernels.lstm(
            F.linear(x, weights.gates_x, self.bias),
            hidden,
            cell,
            weights.gates_h,
            torch.addcmul(gains_and_shifts, is_input_shift, self.bias),
            torch.stack(gain_and_shift(self.cell, size, self.bias)),
            mask,
            *form(self.gates_h.norm, 4 * size, self.cell, size),
            reverse=reverse,
        )


def gain_and_shift(norm: Normaliser, features: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return gain and shift of a norm, ``(features,)`` each. A missing gain is ones, a missing shift zeros.

    ``like``: a tensor with the dtype and device of these ones and zeros.
    """
    gain = like.new_ones(features) if norm.weight is None else norm.weight
    shift = like.new_zeros(features) if norm.bias is None else norm.bias
    return gain, shift


def affine(*sides: Sequence[Linear]) -> Tensor:
    """Return gains and shifts of the norms of layers, ``(sides, 2, features)``; the second axis is gain and shift.

    Each argument is a side: the layers of the input, or those of the state. Their features are concatenated.
    """
    rows = []
    for sites in sides:
        pairs = [gain_and_shift(site.norm, site.site.features, site.weight) for site in sites]
        rows += [torch.cat(parts) for parts in zip(*pairs, strict=True)]
    return torch.stack(rows).unflatten(0, (len(sides), 2))


def biases(*sites: Linear) -> Tensor | None:
    """Return the biases of the layers, concatenated; None if the layers have no bias."""
    parts: list[Tensor] = [site.bias for site in sites if site.bias is not None]
    return torch.cat(parts) if parts else None


def form(gates: Normaliser, gates_size: int, inner: Normaliser, inner_size: int) -> tuple[kernels.StepForm, float]:
    """Return the kernels' description of the two norms of a step, and the norms' common eps.

    ``gates``: the norm of the gates. ``inner``: the norm of the candidate (GRU) or of the cell (LSTM).
    """
    gates_form, inner_form = gates.form(gates_size), inner.form(inner_size)
    return kernels.StepForm(gates_form.kind, gates_form.k, inner_form.k, gates_form.inside), gates_form.eps


def reversal(mask: Tensor | None, x: Tensor) -> Tensor:
    """Return indices ``(batch, time, 1)`` that reverse the real part of each sequence.

    On padding the indices repeat the reversed sequence, as in the published attentive reader. This matters to batch
    norm with norm.padding=include, whose statistics include padding.
    """
    positions = torch.arange(x.shape[1], device=x.device)
    lengths = torch.full((x.shape[0],), x.shape[1], device=x.device) if mask is None else mask.sum(1)
    lengths = lengths.clamp(min=1).unsqueeze(1)
    return (lengths - 1 - positions % lengths).unsqueeze(-1)
