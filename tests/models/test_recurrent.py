"""GRU and LSTM against torch's layers and, for every norm, plain formulas; statistics of time steps, padding."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.sites import EVERY, KINDS, NORMS, by_formula, close, draw, fill, mask_of, weight_of, with_gain_and_shift
from torch import Tensor, nn

from rmsexp import norms
from rmsexp.models.recurrent import GRU, LSTM

E, H, TIME = 3, 4, 5
LENGTHS = torch.tensor([5, 1, 3, 5, 2, 4])  # 6 sequences have a first step, 5 a second, 4, 3 and 2 the next ones
BATCH, LEAST = len(LENGTHS), 4  # LEAST: min_examples of the batch norms in NORMS
MASK = mask_of(LENGTHS, TIME)
UNITS = pytest.mark.parametrize("unit", [GRU, LSTM])
BOTH = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
Unit = type[GRU] | type[LSTM]


def make(norm: norms.Norm, unit: Unit = GRU, **options: bool) -> Any:  # Any, because tests read attributes of its norms
    return fill(unit(norm, "unit", E, H, **options))


def initial_of(unit: Unit, batch: int = BATCH) -> tuple[Tensor, ...]:
    return tuple(draw(batch, H, seed=20 + i).requires_grad_() for i in range(unit.states))


def gradients(result: Tensor, module: nn.Module, *others: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of a weighted sum of the result with respect to the module's parameters and ``others``."""
    weighted = (result * draw(*result.shape, seed=30)).sum()
    return torch.autograd.grad(weighted, [*module.parameters(), *others], retain_graph=True)


def in_torch_order(unit: Any) -> dict[str, Tensor]:
    """Return the parameters with torch's names and order of gates.

    The order is r, z (here u), n (here the candidate) for the GRU, and i, f, g, o for the LSTM.
    """
    if isinstance(unit, GRU):
        sides = {"ih": (unit.gates_x, unit.candidate_x), "hh": (unit.gates_h, unit.candidate_h)}
        none = torch.zeros(3 * H, dtype=torch.float64)
        weights = {f"weight_{kind}_l0": torch.cat([site.weight for site in sites]) for kind, sites in sides.items()}
        biases = {
            f"bias_{kind}_l0": none if sites[0].bias is None else torch.cat([site.bias for site in sites])
            for kind, sites in sides.items()
        }
        return weights | biases
    ours = {"weight_ih": unit.gates_x.weight, "weight_hh": unit.gates_h.weight, "bias_ih": unit.bias}
    ours |= {"bias_hh": unit.bias}
    return {f"{name}_l0": torch.cat([value.chunk(4)[gate] for gate in (0, 1, 3, 2)]) for name, value in ours.items()}


@pytest.mark.parametrize(
    ("unit", "options"),
    [(GRU, {}), (GRU, {"bias_of_state": True}), (LSTM, {})],
    ids=["GRU", "GRU with its biases at the state", "LSTM"],
)
@pytest.mark.parametrize("ragged", [False, True])
def test_without_norm_two_directions_are_torch_s(unit: Unit, options: dict[str, bool], ragged: bool) -> None:
    units = [fill(make(NORMS["none"], unit, **options), seed=seed) for seed in (1, 50)]
    x, initial = draw(BATCH, TIME, E).requires_grad_(), [initial_of(unit), initial_of(unit)]
    mask, lengths = (MASK, LENGTHS) if ragged else (None, torch.full((BATCH,), TIME))
    both = torch.cat([units[0](x, mask, initial[0]), units[1](x, mask, initial[1], reverse=True)], -1)

    layouts = [in_torch_order(layer) for layer in units]
    torch_layer = {GRU: nn.GRU, LSTM: nn.LSTM}[unit](E, H, batch_first=True, bidirectional=True).double()
    torch_layer.load_state_dict(layouts[0] | {f"{name}_reverse": value for name, value in layouts[1].items()})
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    state = [torch.stack(parts) for parts in zip(*initial, strict=True)]
    output, _ = torch_layer(packed, state[0] if unit is GRU else tuple(state))
    expected, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
    real = mask_of(lengths, TIME)
    close(both[real], expected[real])

    leaves = (x, *initial[0], *initial[1])
    torch_gradients = gradients(expected[real], torch_layer, *leaves)
    gradient_by_name = dict(zip(dict(torch_layer.named_parameters()), torch_gradients, strict=False))
    for layer, layout, suffix in zip(units, layouts, ("", "_reverse"), strict=True):
        learnt = {name: value for name, value in layout.items() if value.requires_grad}
        back = [gradient_by_name[name + suffix] for name in learnt]
        unit_gradients = torch.autograd.grad(list(learnt.values()), list(layer.parameters()), back)
        close(gradients(both[real], layer, *leaves), (*unit_gradients, *torch_gradients[-len(leaves) :]))


Normalise = Callable[[Any, Tensor, int], Tensor]  # (layer, input, time step) -> output
State = list[Tensor]


def gru_step(gru: GRU, x: Tensor, state: State, real: Tensor, step: int, n: Normalise) -> State:
    h = state[0]
    gates = n(gru.gates_x.norm, x @ weight_of(gru.gates_x).T + gru.gates_x.bias, step)
    gates = gates + n(gru.gates_h.norm, h @ weight_of(gru.gates_h).T, step)
    r, u = torch.sigmoid(gates[:, :H]), torch.sigmoid(gates[:, H:])
    candidate_x = n(gru.candidate_x.norm, x @ weight_of(gru.candidate_x).T + gru.candidate_x.bias, step)
    c = torch.tanh(candidate_x + r * n(gru.candidate_h.norm, h @ weight_of(gru.candidate_h).T, step))
    return [torch.where(real, u * h + (1 - u) * c, h)]


def lstm_step(lstm: LSTM, x: Tensor, state: State, real: Tensor, step: int, n: Normalise) -> State:
    h, c = state
    p = n(lstm.gates_x.norm, x @ weight_of(lstm.gates_x).T + lstm.bias, step)
    p = p + n(lstm.gates_h.norm, h @ weight_of(lstm.gates_h).T, step) + lstm.bias
    i, f, o = (torch.sigmoid(p[:, gate * H : (gate + 1) * H]) for gate in range(3))
    carried = torch.where(real, f * c + i * torch.tanh(p[:, 3 * H :]), c)
    return [torch.where(real, o * torch.tanh(n(lstm.cell, carried, step)), h), carried]


def plainly(unit: Any, x: Tensor, lengths: Tensor, n: Normalise, *, reverse: bool, every: bool = False) -> Tensor:
    """Return the hidden states on real positions, ``(real positions, H)``, computed by the formulas with norm ``n``.

    The initial state is :func:`initial_of`. A step includes the sequences that are long enough or, with ``every``, all
    sequences. A sequence that has ended keeps its state; its input is then its padding or, in reverse, the sequence
    once more.
    """
    transition: Callable[..., State] = gru_step if isinstance(unit, GRU) else lstm_step
    state, columns = list(initial_of(type(unit), len(x))), []
    for step in range(x.shape[1] if every else int(lengths.max())):
        rows = torch.arange(len(x)) if every else (lengths > step).nonzero().squeeze(1)
        at = lengths[rows] - 1 - step % lengths[rows] if reverse else torch.full_like(rows, step)
        real = (lengths[rows] > step).unsqueeze(1)
        after = transition(unit, x[rows, at], [part[rows] for part in state], real, step, n)
        state = [part.index_put((rows,), new) for part, new in zip(state, after, strict=True)]
        columns.append(state[0])
    states = [row[:length] for row, length in zip(torch.stack(columns, 1), lengths.tolist(), strict=True)]
    return torch.cat([row.flip(0) for row in states] if reverse else states)


class PlainBatchNorm:
    """Batch norm by its formulas, with statistics per layer and time step.

    ``known``: the running mean and unbiased variance, by layer and time step.
    """

    def __init__(self) -> None:
        self.known: dict[Any, dict[int, tuple[Tensor, Tensor]]] = {}
        self.learns = self.uses_batch = True

    def __call__(self, layer: Any, x: Tensor, step: int) -> Tensor:
        known, enough = self.known.setdefault(layer, {}), len(x) >= LEAST
        if self.learns and enough:
            new = x.mean(0).detach(), x.var(0).detach()
            old = known.get(step, new)
            known[step] = 0.875 * old[0] + 0.125 * new[0], 0.875 * old[1] + 0.125 * new[1]
        if self.uses_batch and enough:
            mean, var = x.mean(0), x.var(0, unbiased=False)
        else:
            mean, var = known[max(seen for seen in known if seen <= step)]
        centred = x - mean
        if not isinstance(layer, norms.MeanOnlyBatchNorm):
            centred = centred / (var + 1e-5).sqrt()
        return with_gain_and_shift(layer, centred)


@EVERY
@UNITS
@BOTH
def test_values_and_gradients_are_the_formulas(unit: Unit, name: str, reverse: bool) -> None:
    ours, x, initial = make(NORMS[name], unit), draw(BATCH, TIME, E).requires_grad_(), initial_of(unit)
    states = ours(x, MASK, initial, reverse=reverse)[MASK]
    formula = PlainBatchNorm() if name in ("bn", "mean_only_bn") else lambda layer, x, _: by_formula(name, layer, x)
    expected = plainly(ours, x, LENGTHS, formula, reverse=reverse)
    close(states, expected)
    close(gradients(states, ours, x), gradients(expected, ours, x))


@UNITS
@BOTH
@pytest.mark.parametrize("padding", ["exclude", "include"])
@pytest.mark.parametrize("evaluation", ["running", "batch"])
@pytest.mark.parametrize("family", [norms.BN, norms.MeanOnlyBN])
def test_batch_norm_learns_the_statistics_of_each_step(
    family: type[norms.BN | norms.MeanOnlyBN], unit: Unit, reverse: bool, padding: str, evaluation: str
) -> None:
    """States and running statistics equal those of :class:`PlainBatchNorm`.

    Training batches are shorter or longer than earlier ones; evaluation batches are longer than all of these.
    """
    norm = family(name="bn", min_examples=LEAST, momentum=0.125, padding=padding, eval=evaluation)
    ours = make(norm, unit)
    plain, every = PlainBatchNorm(), padding == "include"

    def read(lengths: list[int], time: int, seed: int) -> None:
        x, sizes = draw(len(lengths), time, E, seed=seed), torch.tensor(lengths)
        states = ours(x, mask_of(sizes, time), initial_of(unit, len(x)), reverse=reverse)[mask_of(sizes, time)]
        close(states, plainly(ours, x, sizes, plain, reverse=reverse, every=every))

    for seed, lengths in enumerate(([5, 1, 3, 5, 2, 4], [2, 3, 3, 2, 3, 1, 3], [6, 6, 4, 6, 5, 1])):
        read(lengths, max(lengths), seed)
    layers = [layer for layer in ours.modules() if isinstance(layer, norms.BatchNorm)]
    # Number of batches in the statistics of each time step; step 6 has three real sequences, fewer than LEAST.
    counts = [3, 3, 3, 2, 2, 1] if every else [3, 3, 3, 1, 1, 0]
    assert len(layers) == len(plain.known) == {GRU: 4, LSTM: 3}[unit]
    for layer in layers:
        assert layer.count.tolist() == counts
        for step, (mean, var) in plain.known[layer].items():
            close(layer.running_mean[step], mean)
            if layer.has_gain:  # the variance of mean-only batch norm is not computed
                close(layer.running_var[step], var)
    ours.eval()
    plain.learns, plain.uses_batch = False, evaluation == "batch"
    read([8, 1, 2, 8, 7, 3], 8, 9)
    read([4, 8], 8, 10)
    assert all(layer.count.tolist() == counts for layer in layers)


@KINDS
@UNITS
def test_padding_leaves_the_state(unit: Unit, name: str) -> None:
    ours, initial = make(NORMS[name], unit), initial_of(unit)
    states = ours(draw(BATCH, TIME, E), MASK, initial)
    for row, length in zip(states, LENGTHS.tolist(), strict=True):
        close(row[length:], row[length - 1].expand(TIME - length, H))
        assert not torch.equal(row[length - 1], initial[0][0])


@KINDS
@UNITS
def test_the_default_state_is_zeros_and_the_default_mask_all_real(unit: Unit, name: str) -> None:
    ours, x = make(NORMS[name], unit).eval(), draw(BATCH, TIME, E)
    zeros = tuple(torch.zeros_like(part) for part in initial_of(unit))
    expected = ours(x, torch.ones(BATCH, TIME, dtype=torch.bool), zeros)
    close(ours(x), expected)
    for i, part in enumerate(initial_of(unit)):
        assert not torch.allclose(ours(x, initial=(*zeros[:i], part, *zeros[i + 1 :])), expected)


@pytest.mark.parametrize(("unit", "maps"), [(GRU, 4), (LSTM, 2)])
def test_weights_are_normalised_once_per_sequence(unit: Unit, maps: int) -> None:
    ours, calls = make(NORMS["wn"], unit), []
    for module in ours.modules():
        if isinstance(module, norms.WeightNorm):
            module.register_forward_hook(lambda module, *_: calls.append(module))
    ours(draw(2, 30, E))
    assert len(calls) == len(set(calls)) == maps
