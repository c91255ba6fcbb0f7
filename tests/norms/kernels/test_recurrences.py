"""The fused recurrent layers, GRU and LSTM, equal the eager ones."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from helpers.fused_pairs import NORMS, PROPERTY, Pair, close, gradients, pair
from helpers.sites import draw, fill, mask_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rmsexp import norms
from rmsexp.models.convpool import ConvPool
from rmsexp.models.recurrent import GRU, LSTM, impl_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]

E, H = 7, 19  # input and hidden size; 19 is not a multiple of the size of a SIMD vector
UNITS: dict[str, Callable[..., nn.Module]] = {
    "GRU": partial(GRU, name="unit"),
    "GRU with biases on the state's side": partial(GRU, name="unit", bias_of_state=True),
    "LSTM": partial(LSTM, name="unit"),
}
units = pytest.mark.parametrize("unit", UNITS)
directions = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
LENGTHS = torch.tensor([5, 1, 3, 5, 2, 4])
BATCH, TIME = len(LENGTHS), 5


def pair_of(unit: str, name: str, dtype: torch.dtype = torch.float64, sizes: tuple[int, int] = (E, H)) -> Pair:
    return pair(lambda norm: UNITS[unit](norm, input_size=sizes[0], hidden_size=sizes[1]), name, dtype)


MASK = mask_of(LENGTHS, TIME)


def initial_of(unit: Any, batch: int = BATCH) -> tuple[Tensor, ...]:
    size, dtype = unit.hidden_size, next(unit.parameters()).dtype
    return tuple(draw(batch, size, seed=20 + i).to(dtype).requires_grad_() for i in range(unit.states))


def assert_agree(
    units: Pair, x: Tensor, mask: Tensor | None, initial: Sequence[Tensor] | None, *, reverse: bool
) -> None:
    """Assert that two modules return equal states, except on padding, and that their gradients are equal.

    The gradients are those of parameters, and of input and initial states if these require gradients.
    """
    real = torch.ones(()) if mask is None else mask.unsqueeze(-1).to(x.dtype)
    results = []
    for unit in units:
        states = unit(x, mask, None if initial is None else tuple(initial), reverse=reverse) * real
        inputs = [tensor for tensor in (x, *(initial or ())) if tensor.requires_grad]
        results.append([states, *gradients(states, [*unit.parameters(), *inputs])])
    close(results[1], results[0])


# --- values and gradients


@pytest.mark.parametrize(("name", "reverse"), [*((name, False) for name in NORMS), ("rms", True)])
@units
def test_sequences_of_several_lengths_in_float32(name: str, unit: str, reverse: bool) -> None:
    layers, x = pair_of(unit, name, torch.float32), draw(BATCH, TIME, E).float().requires_grad_()
    assert_agree(layers, x, MASK, initial_of(layers[0]), reverse=reverse)
    assert_agree(layers, x, None, None, reverse=reverse)


@pytest.mark.parametrize("name", ["none", "ln", "prms"])
@units
def test_padding_keeps_the_state(name: str, unit: str) -> None:
    eager, fused = pair_of(unit, name)
    x, initial, lengths = draw(BATCH, TIME, E), initial_of(eager), torch.tensor([5, 0, 3, 5, 2, 4])
    mask = mask_of(lengths, TIME)
    states = fused(x, mask, initial)
    close([states], [eager(x, mask, initial)])
    last = torch.where(lengths.unsqueeze(1) > 0, states[torch.arange(BATCH), lengths - 1], initial[0])
    assert torch.equal(states[~mask], last.unsqueeze(1).expand_as(states)[~mask])
    with_nan = fused(x.masked_fill(~mask.unsqueeze(-1), float("nan")), mask, initial)
    assert torch.equal(with_nan, states)


@PROPERTY
@given(
    st.sampled_from(list(UNITS)),
    st.sampled_from(list(NORMS)),
    st.lists(st.integers(0, 6), min_size=1, max_size=5),
    st.tuples(st.integers(1, 6), st.integers(1, 20)),
    st.booleans(),
    st.sampled_from(["none", "leaves", "expanded", "constants"]),
    st.booleans(),
)
def test_any_lengths_sizes_and_initial_states(
    unit: str, name: str, lengths: list[int], sizes: tuple[int, int], reverse: bool, initial: str, masked: bool
) -> None:
    batch, time = len(lengths), max(1, *lengths)
    layers = pair_of(unit, name, sizes=sizes)
    states: tuple[Tensor, ...] | None = initial_of(layers[0], batch)
    if initial == "none":
        states = None
    elif initial == "expanded":
        states = tuple(state[0].detach().requires_grad_().expand(batch, -1) for state in states)
    elif initial == "constants":
        states = tuple(state.detach() for state in states)
    x = draw(batch, time, sizes[0], seed=time).requires_grad_()
    assert_agree(layers, x, mask_of(torch.tensor(lengths), time) if masked else None, states, reverse=reverse)


@units
@directions
@pytest.mark.parametrize("masked", [False, True])
def test_batches_without_sequences_or_positions(unit: str, masked: bool, reverse: bool) -> None:
    for batch, time in ((0, TIME), (BATCH, 0)):
        x, mask = draw(batch, time, E), MASK[:batch, :time] if masked else None
        for layer in pair_of(unit, "rms"):
            states = layer(x, mask, reverse=reverse)
            assert states.shape == (batch, time, H)
            assert not any(gradient.any() for gradient in gradients(states, list(layer.parameters())))


@units
@directions
def test_threads(unit: str, reverse: bool) -> None:
    """Results are bit-identical for equal numbers of threads, and equal up to rounding for different numbers."""
    _, fused = pair_of(unit, "ln", torch.float32, (32, 64))
    x, mask = draw(60, 4, 32).float().requires_grad_(), mask_of(torch.arange(60) % 4 + 1, 4)
    by_threads = {}
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        runs = []
        for _ in range(2):
            states = fused(x, mask, reverse=reverse)[mask]
            runs.append([states, *gradients(states, [x, *fused.parameters()])])
        assert all(map(torch.equal, *runs))
        by_threads[threads] = runs[0]
    close(by_threads[2], by_threads[1])
    close(by_threads[3], by_threads[1])


# --- under torch.compile and autocast


@pytest.mark.parametrize("name", ["ln", "prms"])
@units
def test_autocast_computes_in_float32(name: str, unit: str) -> None:
    _, fused = pair_of(unit, name, torch.float32)
    x, results = draw(BATCH, TIME, E).float().requires_grad_(), []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            states = fused(x, MASK, initial_of(fused))
        results.append([states, *gradients(states, [x, *fused.parameters()])])
    for result, exact in zip(*results, strict=True):
        assert result.dtype is torch.float32
        assert (result - exact).norm() < 0.1 * exact.norm()  # bfloat16 rounds by about 2^-9


# --- norms that differ between the places of a step


@dataclass(frozen=True, kw_only=True)
class Mixed(norms.LN):
    """LayerNorm, but RMSNorm for sites whose name ends with ``others``."""

    others: str

    def normaliser(self, site: norms.Site) -> norms.Normaliser:
        if site.name.endswith(self.others):
            return norms.RMSNorm(site.features, 1e-5, bias=True, impl=self.impl)
        return super().normaliser(site)


@pytest.mark.parametrize(
    ("unit", "others"), [("LSTM", ".cell"), ("LSTM", "gates_x"), ("GRU", "candidate_x"), ("GRU", "gates_h")]
)
def test_different_norms_in_one_step_are_refused(unit: str, others: str) -> None:
    for impl in ("eager", "fused"):
        layer = fill(UNITS[unit](Mixed(name="ln", impl=impl, others=others), input_size=E, hidden_size=H))
        with nullcontext() if impl == "eager" else pytest.raises(ValueError, match="norms of one kind"):
            layer(draw(2, 3, E))


@units
@pytest.mark.parametrize("norm", [norms.DyT(name="dyt"), norms.Derf(name="derf")], ids=lambda norm: norm.name)
def test_pointwise_functions_run_by_step_with_fused_norms(unit: str, norm: norms.Norm) -> None:
    results = []
    for impl in ("eager", "fused"):
        chosen = replace(norm, impl=impl)
        layer = fill(UNITS[unit](chosen, input_size=E, hidden_size=H))
        states = layer(draw(BATCH, TIME, E), MASK) * MASK.unsqueeze(-1)
        results.append([states, *gradients(states, list(layer.parameters()))])
        assert not layer.fused
        assert impl_of(chosen, layer) == {"eager": "eager", "fused": "fused norms"}[impl]
        assert impl_of(chosen, ConvPool(chosen, width=0.05)) == impl
    close(results[1], results[0])
