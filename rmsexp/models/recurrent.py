"""Recurrent layers with norms: GRU and LSTM.

Shapes: input ``(batch, time, input_size)``; output ``(batch, time, hidden_size)``; masks ``(batch, time)``, true on
real positions. Tensors of a single time step lack the axis ``time``. In formulas x is the input, h the hidden state
before the step, h' the hidden state after it, and N a norm with its own gain and shift at each place.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp.norms import Linear, Norm, Normaliser, kernels

State = tuple[Tensor, ...]  # (batch, hidden_size) each; the first is the hidden state, which is the output
Part = tuple[Tensor, ...]  # the terms of a step that depend on the input alone, for one time step or for all
Weights = dict[str, Tensor]  # effective weights: re-parametrised if the norm does so, otherwise as they are

DIFFERENT_NORMS = (
    "fused recurrences need norms of one kind, with the same eps and share of the units, at all their sites; "
    "use norm.impl=eager"
)


class Recurrence(nn.Module, ABC):
    """A recurrent layer. It runs step by step or, with ``norm.impl=fused``, as one operator for whole sequences.

    With a norm that has no fused form for recurrences, it runs step by step in both cases.
    """

    states = 1  # number of tensors in a state

    def __init__(self, norm: Norm, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.fused = norm.fused and norm.fusible_recurrences

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied layer, whose operator may not be loaded, or not be available, in this process."""
        super().__setstate__(state)
        self.fused = self.fused and kernels.load()

    def forward(
        self, x: Tensor, mask: Tensor | None = None, initial: State | None = None, *, reverse: bool = False
    ) -> Tensor:
        """Return the hidden states ``(batch, time, hidden_size)``, each at the position of its input.

        Padding must be at the end of a sequence and leaves the state unchanged; ``mask=None`` means no padding.
        ``initial`` is the state before the first step; None means zeros. With ``reverse`` each sequence is read from
        its last real position to its first; the output on padding is then undefined.
        """
        zeros = x.new_zeros(x.shape[0], self.hidden_size)
        state = (zeros,) * self.states if initial is None else initial
        if self.fused:
            return self.run_fused(x, mask, state, reverse=reverse)
        order = reversal(mask, x) if reverse else None
        if order is not None:
            x = x.gather(1, order.expand_as(x))
        weights = self.weights()
        parts = self.read(x, weights, mask, range(x.shape[1]))
        hidden_states = []
        for step, part in enumerate(zip(*(steps.unbind(1) for steps in parts), strict=True)):
            real = None if mask is None else mask[:, step]
            hidden, *others = self.transition(part, state, weights, real, step)
            state = (hidden if real is None else torch.where(real.unsqueeze(-1), hidden, state[0]), *others)
            hidden_states.append(state[0])
        # without time steps, the terms of the input are as empty as the result is
        stacked = torch.stack(hidden_states, 1) if hidden_states else parts[0][..., : self.hidden_size]
        return stacked if order is None else stacked.gather(1, order.expand_as(stacked))

    @abstractmethod
    def run_fused(self, x: Tensor, mask: Tensor | None, state: State, *, reverse: bool) -> Tensor:
        """Return the result of :meth:`forward`, computed by one fused operator. ``state`` is the initial state."""

    def weights(self) -> Weights:
        """Return the effective weights of the linear layers, by their names; :meth:`forward` computes them once."""
        return {name: site.effective_weight() for name, site in self.named_children() if isinstance(site, Linear)}

    @abstractmethod
    def read(self, x: Tensor, weights: Weights, mask: Tensor | None, steps: int | range) -> Part:
        """Return the terms of :meth:`transition` that depend on the input alone.

        ``steps``: the time step of an ``x`` of shape ``(batch, input_size)``, or all of ``(batch, time, input_size)``.
        """

    @abstractmethod
    def transition(self, part: Part, state: State, weights: Weights, mask: Tensor | None, step: int) -> State:
        """Return the state after time step ``step``. ``part`` is the result of :meth:`read` for this step.

        Where ``mask``, ``(batch,)``, is false, the hidden state in the result has no meaning, and the caller restores
        it; the state's other tensors are returned unchanged there.
        """


class GRU(Recurrence):
    """A gated recurrent unit with norms at four sites, as in Nematus.

    ``[r, u] = sigmoid(N(W x + b) + N(U h))``; ``c = tanh(N(V x + d) + r * N(T h))``; ``h' = u * h + (1 - u) * c``.

    r is the reset gate, u the update gate, c the candidate. The norms of ``W x + b`` and ``U h`` normalise both gates
    together. The reset gate is applied after the norm. Without a norm this is ``torch.nn.GRU`` with one of its two bias
    vectors at zero.

    Layers ``…_x`` map the input, and ``…_h`` the hidden state. The gates' weights stack the rows of r and of u.

    ``norm``: creates the layers. ``name``: beginning of the names of the sites. ``bias_of_state``: add the biases b and
    d to ``U h`` and ``T h`` instead of ``W x`` and ``V x``, as in the second GRU of the decoder of Nematus.
    """

    def __init__(
        self, norm: Norm, name: str, input_size: int, hidden_size: int, *, bias_of_state: bool = False
    ) -> None:
        super().__init__(norm, hidden_size)
        bias_of_input = not bias_of_state
        norm = norm.at(role="recurrent")
        self.gates_x = norm.linear(f"{name}.gates_x", input_size, 2 * hidden_size, bias=bias_of_input, blocks=2)
        self.gates_h = norm.linear(f"{name}.gates_h", hidden_size, 2 * hidden_size, bias=bias_of_state, blocks=2)
        self.candidate_x = norm.linear(f"{name}.candidate_x", input_size, hidden_size, bias=bias_of_input)
        self.candidate_h = norm.linear(f"{name}.candidate_h", hidden_size, hidden_size, bias=bias_of_state)

    def read(self, x: Tensor, weights: Weights, mask: Tensor | None, steps: int | range) -> Part:
        return (
            self.gates_x.norm(self.gates_x.map(x, weights["gates_x"]), mask=mask, steps=steps),
            self.candidate_x.norm(self.candidate_x.map(x, weights["candidate_x"]), mask=mask, steps=steps),
        )

    def transition(self, part: Part, state: State, weights: Weights, mask: Tensor | None, step: int) -> State:
        (hidden,) = state
        gates_h = self.gates_h.norm(self.gates_h.map(hidden, weights["gates_h"]), mask=mask, steps=step)
        candidate_h = self.candidate_h.norm(self.candidate_h.map(hidden, weights["candidate_h"]), mask=mask, steps=step)
        gates_x, candidate_x = part
        reset, update = torch.sigmoid(gates_x + gates_h).chunk(2, -1)
        candidate = torch.tanh(torch.addcmul(candidate_x, reset, candidate_h))
        return (torch.addcmul(candidate, update, hidden - candidate),)

    def run_fused(self, x: Tensor, mask: Tensor | None, state: State, *, reverse: bool) -> Tensor:
        weights, (hidden,) = self.weights(), state
        inputs = {
            "x": self.products(x, weights),
            "h0": hidden,
            "weight": torch.cat([weights["gates_h"], weights["candidate_h"]]),
            "affine": self.affine(),
            "bias": self.bias_of_state(),
            "mask": mask,
        }
        return kernels.sequence("gru", *self.form(), inputs, reverse=reverse)[0]

    def products(self, x: Tensor, weights: Weights) -> Tensor:
        """Return ``W x + b`` and ``V x + d``, concatenated and before the norms, ``(…, 3 hidden_size)``."""
        weight = torch.cat([weights["gates_x"], weights["candidate_x"]])
        return F.linear(x, weight, biases(self.gates_x, self.candidate_x))

    def bias_of_state(self) -> Tensor | None:
        """Return the biases of ``U h`` and ``T h``, ``(3 hidden_size,)``; None if the input has the biases."""
        return biases(self.gates_h, self.candidate_h)

    def affine(self) -> Tensor:
        """Return :func:`affine` of the input's and of the state's layers, ``(2, 2, 3 hidden_size)``."""
        return affine((self.gates_x, self.candidate_x), (self.gates_h, self.candidate_h))

    def form(self) -> tuple[kernels.StepForm, float]:
        """Return what the fused kernels need to know about the norms, and the norms' eps."""
        gates, candidates = (self.gates_x.norm, self.gates_h.norm), (self.candidate_x.norm, self.candidate_h.norm)
        return form(gates, 2 * self.hidden_size, candidates, self.hidden_size, self.gates_h.weight.dtype)


class LSTM(Recurrence):
    """A long short-term memory with norms at three sites (Ba et al. 2016, Eqs. 20 to 22).

    ``[i, f, o, g] = N(W x + b) + N(U h) + b``; ``c' = sigmoid(f) * c + sigmoid(i) * tanh(g)``;
    ``h' = sigmoid(o) * tanh(N(c'))``, where c and c' are the cell before and after the step.

    The norms of ``W x + b`` and ``U h`` normalise all four blocks together. The next step gets the cell c', not N(c').
    The same bias vector b is added twice, as in the code of Cooijmans et al. 2017. Without a norm this is
    ``torch.nn.LSTM`` with two equal bias vectors, up to the order of the blocks. ``norm``, ``name``: see :class:`GRU`.
    """

    states = 2  # hidden state, cell

    def __init__(self, norm: Norm, name: str, input_size: int, hidden_size: int) -> None:
        super().__init__(norm, hidden_size)
        width = 4 * hidden_size
        norm = norm.at(role="recurrent")
        self.gates_x = norm.linear(f"{name}.gates_x", input_size, width, bias=False, then_bias=True, blocks=4)
        self.gates_h = norm.linear(f"{name}.gates_h", hidden_size, width, bias=False, then_bias=True, blocks=4)
        self.cell = norm.value(f"{name}.cell", hidden_size)
        self.bias = nn.Parameter(torch.zeros(width))

    def read(self, x: Tensor, weights: Weights, mask: Tensor | None, steps: int | range) -> Part:
        products = F.linear(x, weights["gates_x"], self.bias)
        return (self.gates_x.norm(products, mask=mask, steps=steps) + self.bias,)

    def transition(self, part: Part, state: State, weights: Weights, mask: Tensor | None, step: int) -> State:
        hidden, cell = state
        gates = part[0] + self.gates_h.norm(self.gates_h.map(hidden, weights["gates_h"]), mask=mask, steps=step)
        i, f, o, g = gates.chunk(4, -1)
        new = torch.addcmul(torch.sigmoid(f) * cell, torch.sigmoid(i), torch.tanh(g))
        # Restore the cell on padding before the norm: with norm.padding=include, batch norm's statistics cover padding.
        if mask is not None:
            new = torch.where(mask.unsqueeze(-1), new, cell)
        return torch.sigmoid(o) * torch.tanh(self.cell(new, mask=mask, steps=step)), new

    def run_fused(self, x: Tensor, mask: Tensor | None, state: State, *, reverse: bool) -> Tensor:
        weights, size, (hidden, cell) = self.weights(), self.hidden_size, state
        gains_and_shifts = affine((self.gates_x,), (self.gates_h,))
        gains_and_shifts[0, 1].add_(self.bias)  # the bias that follows the norms joins the shift of the input's norm
        inputs = {
            "x": F.linear(x, weights["gates_x"], self.bias),
            "h0": hidden,
            "c0": cell,
            "weight": weights["gates_h"],
            "affine": gains_and_shifts,
            "cell_affine": torch.stack(gain_and_shift(self.cell, size, self.bias)),
            "mask": mask,
        }
        norms = form((self.gates_x.norm, self.gates_h.norm), 4 * size, (self.cell,), size, weights["gates_h"].dtype)
        return kernels.sequence("lstm", *norms, inputs, reverse=reverse)[0]


def impl_of(norm: Norm, model: nn.Module) -> str:
    """Return the implementation that a model with this norm uses, as records name it.

    "eager", "fused", or "fused norms": norms are fused, but recurrences run step by step.
    """
    if not norm.fused:
        return "eager"
    by_step = any(isinstance(module, Recurrence) and not module.fused for module in model.modules())
    return "fused norms" if by_step else "fused"


def gain_and_shift(norm: Normaliser, features: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return gain and shift of a norm, ``(features,)``; a missing gain is ones, a missing shift zeros, as ``like``."""
    gain = norm.effective_gain
    shift = like.new_zeros(features) if norm.bias is None else norm.bias
    return like.new_ones(features) if gain is None else gain, shift


def affine(*sides: Sequence[Linear]) -> Tensor:
    """Return the gains ``[:, 0]`` and shifts ``[:, 1]`` of the layers' norms, in one tensor ``(sides, 2, features)``.

    Each argument is a side, such as the input's layers, whose features are concatenated. Missing gains are 1, shifts 0.
    """
    rows = []
    for sites in sides:
        pairs = [gain_and_shift(site.norm, site.site.features, site.weight) for site in sites]
        rows += [torch.cat(parts) for parts in zip(*pairs, strict=True)]
    return torch.stack(rows).unflatten(0, (len(sides), 2))


def biases(*sites: Linear) -> Tensor | None:
    """Return the biases of the layers, concatenated; None if no layer has a bias."""
    parts: list[Tensor] = [site.bias for site in sites if site.bias is not None]
    return torch.cat(parts) if parts else None


def form(
    gates: Sequence[Normaliser], gates_size: int, inner: Sequence[Normaliser], inner_size: int, dtype: torch.dtype
) -> tuple[kernels.StepForm, float]:
    """Return what the fused kernels need to know about the norms of a step, and the norms' common eps.

    ``inner``: the norms of the candidate (GRU) or of the cell (LSTM). Sizes are numbers of units. ``dtype``: that of
    the weights.

    Raises: ValueError for norms that the kernels cannot compute in one step, because they differ.
    """
    gates_forms = [norm.form(gates_size, dtype) for norm in gates]
    inner_forms = [norm.form(inner_size, dtype) for norm in inner]
    (kind, gates_k, inside, eps), (inner_kind, inner_k, inner_inside, inner_eps) = gates_forms[0], inner_forms[0]
    alike = (kind, inside, eps) == (inner_kind, inner_inside, inner_eps)
    if not alike or gates_forms != gates_forms[:1] * len(gates) or inner_forms != inner_forms[:1] * len(inner):
        raise ValueError(DIFFERENT_NORMS)
    return kernels.StepForm(kind, gates_k, inner_k, inside), eps


def reversal(mask: Tensor | None, x: Tensor) -> Tensor:
    """Return the indices, ``(batch, time, 1)``, for a ``gather`` that reverses the real part of each sequence.

    On padding the indices repeat the reversed sequence, as in the code of Cooijmans et al. 2017. This matters to batch
    norm with norm.padding=include, whose statistics include padding.
    """
    positions = torch.arange(x.shape[1], device=x.device)
    lengths = torch.full((x.shape[0],), x.shape[1], device=x.device) if mask is None else mask.sum(1)
    lengths = lengths.clamp(min=1).unsqueeze(1)
    return (lengths - 1 - positions % lengths).unsqueeze(-1)
