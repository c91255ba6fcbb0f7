"""Normalised recurrences. Shapes: ``(batch, time, input_size)`` in, ``(batch, time, hidden_size)`` out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rmsexp.norms import Norm


class GRUWeights(NamedTuple):
    """The effective weights of a GRU, taken once a sequence."""

    gates_x: Tensor
    gates_h: Tensor
    candidate_x: Tensor
    candidate_h: Tensor


class GRU(nn.Module):
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
        super().__init__()
        self.hidden_size = hidden_size
        of_input = not bias_of_state
        self.gates_x = norm.linear(f"{name}.gates_x", input_size, 2 * hidden_size, bias=of_input, blocks=2)
        self.gates_h = norm.linear(f"{name}.gates_h", hidden_size, 2 * hidden_size, bias=bias_of_state, blocks=2)
        self.candidate_x = norm.linear(f"{name}.candidate_x", input_size, hidden_size, bias=of_input)
        self.candidate_h = norm.linear(f"{name}.candidate_h", hidden_size, hidden_size, bias=bias_of_state)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, initial: Tensor | None = None, *, reverse: bool = False
    ) -> Tensor:
        """The states over a sequence; ``mask``, ``(batch, time)``, is true where it is real.

        Padding, at the end of the sequence, leaves the state as it is. With ``reverse`` each sequence is read from its
        last real position to its first, and the states lie where their inputs do.
        """
        order = reversal(mask, x) if reverse else None
        if order is not None:
            x = x.gather(1, order.expand_as(x))
        steps = range(x.shape[1])
        weights = self.weights()
        gates, candidate = self.read(x, weights, mask, steps)
        state = x.new_zeros(x.shape[0], self.hidden_size) if initial is None else initial
        states = []
        for step, part in enumerate(zip(gates.unbind(1), candidate.unbind(1), strict=True)):
            here = None if mask is None else mask[:, step]
            new = self.transition(part, state, weights, here, step)
            state = new if here is None else torch.where(here.unsqueeze(-1), new, state)
            states.append(state)
        stacked = torch.stack(states, 1)
        return stacked if order is None else stacked.gather(1, order.expand_as(stacked))

    def weights(self) -> GRUWeights:
        sites = (self.gates_x, self.gates_h, self.candidate_x, self.candidate_h)
        return GRUWeights(*(site.effective_weight() for site in sites))

    def read(self, x: Tensor, weights: GRUWeights, mask: Tensor | None, steps: int | range) -> tuple[Tensor, Tensor]:
        """The input's part in gates and candidate, of one time step or of all at once."""
        return (
            self.gates_x.norm(self.gates_x.map(x, weights.gates_x), mask=mask, steps=steps),
            self.candidate_x.norm(self.candidate_x.map(x, weights.candidate_x), mask=mask, steps=steps),
        )

    def transition(
        self, part: tuple[Tensor, Tensor], state: Tensor, weights: GRUWeights, mask: Tensor | None, step: int
    ) -> Tensor:
        """The next state ``(batch, hidden_size)`` from the input's part and the state."""
        of_gates = self.gates_h.norm(self.gates_h.map(state, weights.gates_h), mask=mask, steps=step)
        of_candidate = self.candidate_h.norm(self.candidate_h.map(state, weights.candidate_h), mask=mask, steps=step)
        reset, update = torch.sigmoid(part[0] + of_gates).chunk(2, -1)
        candidate = torch.tanh(torch.addcmul(part[1], reset, of_candidate))
        return torch.addcmul(candidate, update, state - candidate)


def reversal(mask: Tensor | None, x: Tensor) -> Tensor:
    """Indices ``(batch, time, 1)`` that turn the real part of each sequence round and leave padding where it is."""
    here = torch.arange(x.shape[1], device=x.device)
    lengths = torch.full((x.shape[0],), x.shape[1], device=x.device) if mask is None else mask.sum(1)
    there = lengths.unsqueeze(1) - 1 - here
    return torch.where(there >= 0, there, here).unsqueeze(-1)
