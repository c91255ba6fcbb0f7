"""Normalised recurrences. Shapes: ``(batch, time, input_size)`` in, ``(batch, time, hidden_size)`` out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp import kernels
from rmsexp.norms import Linear, Norm, Normaliser

State = tuple[Tensor, ...]  # (batch, hidden_size) each; the first is what others see
Part = tuple[Tensor, ...]  # what the input brings into one transition, or into all of them
W = TypeVar("W")


class Recurrence(nn.Module, ABC, Generic[W]):
    """Reads sequences step by step, or with a fused norm all at once. ``W``: its effective weights, once a sequence."""

    states = 1  # tensors in a state

    def __init__(self, norm: Norm, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.fused = norm.effective_impl == "fused"

    def forward(
        self, x: Tensor, mask: Tensor | None = None, initial: State | None = None, *, reverse: bool = False
    ) -> Tensor:
        """The states over a sequence; ``mask``, ``(batch, time)``, is true where it is real.

        Padding, at the end of the sequence, leaves the state as it is. With ``reverse`` each sequence is read from its
        last real position to its first, and the states lie where their inputs do; what lies on padding has no meaning.
        """
        if self.fused:
            return self.whole(x, mask, self.begin(x) if initial is None else initial, reverse=reverse)
        order = reversal(mask, x) if reverse else None
        if order is not None:
            x = x.gather(1, order.expand_as(x))
        weights = self.weights()
        parts = self.read(x, weights, mask, range(x.shape[1]))
        state = self.begin(x) if initial is None else initial
        seen = []
        for step, part in enumerate(zip(*(of_all.unbind(1) for of_all in parts), strict=True)):
            here = None if mask is None else mask[:, step]
            first, *others = self.transition(part, state, weights, here, step)
            state = (first if here is None else torch.where(here.unsqueeze(-1), first, state[0]), *others)
            seen.append(state[0])
        stacked = torch.stack(seen, 1)
        return stacked if order is None else stacked.gather(1, order.expand_as(stacked))

    def begin(self, x: Tensor) -> State:
        """The state before a sequence, unless another is given."""
        return (x.new_zeros(x.shape[0], self.hidden_size),) * self.states

    @abstractmethod
    def whole(self, x: Tensor, mask: Tensor | None, state: State, *, reverse: bool) -> Tensor:
        """The states over a sequence in one operator."""

    @abstractmethod
    def weights(self) -> W:
        """The effective weights."""

    @abstractmethod
    def read(self, x: Tensor, weights: W, mask: Tensor | None, steps: int | range) -> Part:
        """The input's part in the transition of one time step or of all at once."""

    @abstractmethod
    def transition(self, part: Part, state: State, weights: W, mask: Tensor | None, step: int) -> State:
        """The next state from the input's part and the state. On padding all of it but the first is kept."""


class GRUWeights(NamedTuple):
    gates_x: Tensor
    gates_h: Tensor
    candidate_x: Tensor
    candidate_h: Tensor


class GRU(Recurrence[GRUWeights]):
    """A gated recurrent unit with four normalised maps, as in Nematus.

    ``[r, u] = sigmoid(N(W x + b) + N(U h))``; ``c = tanh(N(W' x + b') + r * N(U' h))``; ``h' = u * h + (1 - u) * c``.
    The gates are normalised jointly, input and state parts apart, and the reset gate acts after the norm. Without a
    norm this is ``torch.nn.GRU`` with one of its two biases at zero.

    Args:
        norm: what its sites are made with; their names begin with ``name``.
        bias_of_state: the biases belong to the state's maps instead (Nematus, second transition of the decoder).
    """

    def __init__(
        self, norm: Norm, name: str, input_size: int, hidden_size: int, *, bias_of_state: bool = False
    ) -> None:
        super().__init__(norm, hidden_size)
        of_input = not bias_of_state
        self.gates_x = norm.linear(f"{name}.gates_x", input_size, 2 * hidden_size, bias=of_input, blocks=2)
        self.gates_h = norm.linear(f"{name}.gates_h", hidden_size, 2 * hidden_size, bias=bias_of_state, blocks=2)
        self.candidate_x = norm.linear(f"{name}.candidate_x", input_size, hidden_size, bias=of_input)
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
        of_gates = self.gates_h.norm(self.gates_h.map(hidden, weights.gates_h), mask=mask, steps=step)
        of_candidate = self.candidate_h.norm(self.candidate_h.map(hidden, weights.candidate_h), mask=mask, steps=step)
        reset, update = torch.sigmoid(part[0] + of_gates).chunk(2, -1)
        candidate = torch.tanh(torch.addcmul(part[1], reset, of_candidate))
        return (torch.addcmul(candidate, update, hidden - candidate),)

    def whole(self, x: Tensor, mask: Tensor | None, state: State, *, reverse: bool) -> Tensor:
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
        """The input's part before its norms, ``(…, 3 hidden_size)``."""
        return F.linear(x, torch.cat([weights.gates_x, weights.candidate_x]), joined(self.gates_x, self.candidate_x))

    def bias_of_state(self) -> Tensor | None:
        return joined(self.gates_h, self.candidate_h)

    def affine(self) -> Tensor:
        """Gains and shifts of the four norms, ``(input or state, gain or shift, 3 hidden_size)``."""
        return affine((self.gates_x, self.candidate_x), (self.gates_h, self.candidate_h))

    def form(self) -> tuple[list[int], float]:
        return form(self.gates_h.norm, 2 * self.hidden_size, self.candidate_h.norm, self.hidden_size)


class LSTMWeights(NamedTuple):
    gates_x: Tensor
    gates_h: Tensor


class LSTM(Recurrence[LSTMWeights]):
    """A long short-term memory with three normalised places (Ba et al. 2016, Eqs. 20 to 22).

    ``[i, f, o, g] = N(W x + b) + N(U h) + b``; ``c' = sigmoid(f) * c + sigmoid(i) * tanh(g)``;
    ``h' = sigmoid(o) * tanh(N(c'))``. The four are normalised jointly, and c' goes on as it is. One vector b stands in
    both places, as in the published attentive reader. Without a norm this is ``torch.nn.LSTM`` with two equal biases.

    Args:
        norm: what its sites are made with; their names begin with ``name``.
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
        summed = F.linear(x, weights.gates_x, self.bias)
        return (self.gates_x.norm(summed, mask=mask, steps=steps) + self.bias,)

    def transition(self, part: Part, state: State, weights: LSTMWeights, mask: Tensor | None, step: int) -> State:
        hidden, cell = state
        gates = part[0] + self.gates_h.norm(self.gates_h.map(hidden, weights.gates_h), mask=mask, steps=step)
        i, f, o, g = gates.chunk(4, -1)
        new = torch.addcmul(torch.sigmoid(f) * cell, torch.sigmoid(i), torch.tanh(g))
        if mask is not None:  # before its norm: with norm.padding=include its statistics hold what padding kept
            new = torch.where(mask.unsqueeze(-1), new, cell)
        return torch.sigmoid(o) * torch.tanh(self.cell(new, mask=mask, steps=step)), new

    def whole(self, x: Tensor, mask: Tensor | None, state: State, *, reverse: bool) -> Tensor:
        weights, size, (hidden, cell) = self.weights(), self.hidden_size, state
        both = affine((self.gates_x,), (self.gates_h,))
        after = torch.zeros_like(both)
        after[0, 1] = 1.0
        return kernels.lstm(
            F.linear(x, weights.gates_x, self.bias),
            hidden,
            cell,
            weights.gates_h,
            torch.addcmul(both, after, self.bias),
            torch.stack(gain_and_shift(self.cell, size, self.bias)),
            mask,
            *form(self.gates_h.norm, 4 * size, self.cell, size),
            reverse=reverse,
        )


def gain_and_shift(norm: Normaliser, features: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Those of a norm, ``(features,)`` each; ones and zeros where it has none."""
    gain = like.new_ones(features) if norm.weight is None else norm.weight
    shift = like.new_zeros(features) if norm.bias is None else norm.bias
    return gain, shift


def affine(*sides: Sequence[Linear]) -> Tensor:
    """Gains and shifts of the norms of some maps, ``(sides, gain or shift, features of a side)``."""
    rows = []
    for sites in sides:
        pairs = [gain_and_shift(site.norm, site.site.features, site.weight) for site in sites]
        rows += [torch.cat(parts) for parts in zip(*pairs, strict=True)]
    return torch.stack(rows).unflatten(0, (len(sides), 2))


def joined(*sites: Linear) -> Tensor | None:
    """The biases of some maps as one vector."""
    biases: list[Tensor] = [site.bias for site in sites if site.bias is not None]
    return torch.cat(biases) if biases else None


def form(first: Normaliser, first_size: int, second: Normaliser, second_size: int) -> tuple[list[int], float]:
    """What a step's kernels must know of its two norms, and eps."""
    one, other = first.form(first_size), second.form(second_size)
    return [one.kind, one.k, other.k, int(one.inside)], one.eps


def reversal(mask: Tensor | None, x: Tensor) -> Tensor:
    """Indices ``(batch, time, 1)`` that turn the real part of each sequence round.

    Padding is filled with repetitions of the turned part, as in the published attentive reader, where batch norm's
    statistics hold padding.
    """
    here = torch.arange(x.shape[1], device=x.device)
    lengths = torch.full((x.shape[0],), x.shape[1], device=x.device) if mask is None else mask.sum(1)
    lengths = lengths.clamp(min=1).unsqueeze(1)
    return (lengths - 1 - here % lengths).unsqueeze(-1)
