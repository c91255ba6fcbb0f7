"""The fused recurrences equal the eager recurrences: GRU, LSTM, conditional decoder, whole models, whole runs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import language_models, reading_and_retrieval, translation_tasks
from helpers.interpreter import run_python
from helpers.sites import draw, fill
from helpers.tasks import Main, task_and_model
from helpers.translation_models import RAGGED, SOURCES, TARGETS, assert_steps_are_forward, batch_of, pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rmsexp import kernels, norms, record
from rmsexp.models.recurrent import GRU, LSTM
from rmsexp.models.rnnsearch import RNNSearch
from rmsexp.train.randomness import StreamNoise

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]

NORMS: dict[str, norms.Norm] = {  # eps is large, so that it matters whether it is inside or outside the root
    "none": norms.NoNorm(name="none"),
    "wn": norms.WN(name="wn", eps=1e-2),
    "ln": norms.LN(name="ln", eps=1e-2),
    "nonparametric_ln": norms.NonparametricLN(name="nonparametric_ln", eps=1e-2),
    "rms": norms.RMS(name="rms", eps=1e-2),
    "rms, outside, with bias": norms.RMS(name="rms", eps=1e-2, eps_inside=False, bias=True),
    "rms, no gain": norms.RMS(name="rms", eps=1e-2, gain=False),
    "rms, weight offset": norms.RMS(name="rms", eps=1e-2, weight_offset=True),
    "prms": norms.PRMS(name="prms", p=0.3, eps=1e-2),
    "l2": norms.L2(name="l2", eps=1e-2),
}
E, H = 7, 19  # input and hidden size; 19 is not a multiple of the size of a SIMD vector
UNITS: dict[str, Callable[..., nn.Module]] = {
    "GRU": partial(GRU, name="unit"),
    "GRU with biases on the state's side": partial(GRU, name="unit", bias_of_state=True),
    "LSTM": partial(LSTM, name="unit"),
}
every = pytest.mark.parametrize("name", NORMS)
units = pytest.mark.parametrize("unit", UNITS)
directions = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
# In float32, each step rounds values of about 1 by 6e-8, later steps read the rounded values, and gradients of
# parameters sum hundreds of products. The largest observed difference is 3e-6 of the largest gradient.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5}
PROPERTY = settings(derandomize=True, deadline=None, max_examples=80)
LENGTHS = torch.tensor([5, 1, 3, 5, 2, 4])
BATCH, TIME = len(LENGTHS), 5
Pair = tuple[Any, Any]


def pair(build: Callable[[norms.Norm], nn.Module], name: str, dtype: torch.dtype = torch.float64) -> Pair:
    """Return an eager and a fused module with equal parameters."""
    eager, fused = (fill(build(replace(NORMS[name], impl=impl))).to(dtype) for impl in ("eager", "fused"))
    return eager, fused


def pair_of(unit: str, name: str, dtype: torch.dtype = torch.float64, sizes: tuple[int, int] = (E, H)) -> Pair:
    return pair(lambda norm: UNITS[unit](norm, input_size=sizes[0], hidden_size=sizes[1]), name, dtype)


def mask_of(lengths: Tensor, time: int) -> Tensor:
    return torch.arange(time) < lengths.unsqueeze(1)


MASK = mask_of(LENGTHS, TIME)


def initial_of(unit: Any, batch: int = BATCH) -> tuple[Tensor, ...]:
    size, dtype = unit.hidden_size, next(unit.parameters()).dtype
    return tuple(draw(batch, size, seed=20 + i).to(dtype).requires_grad_() for i in range(unit.states))


def gradients(result: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of a weighted sum of ``result``, with zeros for leaves on which it does not depend."""
    weights = draw(*result.shape, seed=30).to(result.dtype)
    return list(torch.autograd.grad((result * weights).sum(), leaves, allow_unused=True, materialize_grads=True))


def close(results: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Assert equality within the dtype's tolerance times the tensor's largest absolute value, or times 1 if larger."""
    for result, reference in zip(results, expected, strict=True):
        largest = max(1.0, float(reference.detach().abs().max())) if reference.numel() else 1.0
        torch.testing.assert_close(result, reference, rtol=0, atol=TOLERANCE[reference.dtype] * largest)


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
@pytest.mark.parametrize("layout", ["time first", "every other unit", "expanded"])
def test_layouts_of_input_and_gradient(unit: str, layout: str) -> None:
    make: Callable[[], Tensor] = {
        "time first": lambda: draw(TIME, BATCH, E).transpose(0, 1),
        "every other unit": lambda: draw(BATCH, TIME, 2 * E)[..., ::2],
        "expanded": lambda: draw(1, 1, E).expand(BATCH, TIME, E),
    }[layout]
    results = []
    for layer in pair_of(unit, "ln", sizes=(E, E)):
        x = make().requires_grad_()
        states = layer(x, MASK)
        results.append([states, *torch.autograd.grad(states, [x, *layer.parameters()], make())])
    close(results[1], results[0])


@units
@pytest.mark.parametrize("constant", ["input", "parameters"])
def test_constants_get_no_gradient(unit: str, constant: str) -> None:
    layers, x = pair_of(unit, "rms"), draw(BATCH, TIME, E)
    if constant == "parameters":
        x.requires_grad_()
    results = []
    for layer in layers:
        layer.requires_grad_(constant == "input")
        layer(x, MASK).square().sum().backward()
        results.append([tensor.grad for tensor in (x, *layer.parameters()) if tensor.requires_grad])
        assert all(tensor.grad is None for tensor in (x, *layer.parameters()) if not tensor.requires_grad)
        x.grad = None
    close(results[1], results[0])


@units
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_autograd(unit: str, context: Callable[[], Any]) -> None:
    eager, fused = pair_of(unit, "prms")
    x = draw(BATCH, TIME, E)
    with context():
        states, expected = fused(x, MASK), eager(x, MASK)
    assert not states.requires_grad
    close([states], [expected])


@units
def test_an_empty_batch(unit: str) -> None:
    assert_agree(pair_of(unit, "rms"), draw(0, TIME, E).requires_grad_(), None, None, reverse=False)


@units
@directions
@pytest.mark.parametrize("masked", [False, True])
def test_sequences_without_positions(unit: str, masked: bool, reverse: bool) -> None:
    eager, fused = pair_of(unit, "rms")
    x, mask = draw(BATCH, 0, E), MASK[:, :0] if masked else None
    results = [layer(x, mask, reverse=reverse) for layer in (eager, fused)]
    assert results[0].shape == results[1].shape == (BATCH, 0, H)
    for layer, states in zip((eager, fused), results, strict=True):
        assert not any(gradient.any() for gradient in gradients(states, list(layer.parameters())))


@units
@pytest.mark.parametrize("masked", [False, True])
def test_on_the_meta_device(unit: str, masked: bool) -> None:
    _, fused = pair_of(unit, "ln", torch.float32)
    x, mask = draw(BATCH, TIME, E).float().to("meta").requires_grad_(), MASK.to("meta") if masked else None
    states = fused.to("meta")(x, mask)
    assert (states.shape, states.dtype, states.device.type) == ((BATCH, TIME, H), torch.float32, "meta")
    (gradient,) = torch.autograd.grad(states, x, torch.empty_like(states))
    assert gradient.shape == x.shape


AGAIN = """
import pickle, sys, torch
for layer, x, y in pickle.load(open(sys.argv[1], "rb")):
    assert torch.equal(layer(x), y)
print("done")
"""


def test_pickled_layers_compute_the_same_in_a_new_process(tmp_path: Path) -> None:
    layers = [(fill(norms.RMSNorm(H, impl="fused")), draw(BATCH, H))]
    layers += [(pair_of(unit, "rms")[1], draw(BATCH, TIME, E)) for unit in UNITS]
    (tmp_path / "layers").write_bytes(pickle.dumps([(layer, x, layer(x).detach()) for layer, x in layers]))
    process = run_python("-c", AGAIN, str(tmp_path / "layers"), OMP_NUM_THREADS="1")
    assert process.stdout == "done\n", process.stderr


@units
def test_pickled_layers_are_eager_where_there_are_no_kernels(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    eager, fused = pair_of(unit, "rms")
    pickled, copied, x = pickle.dumps(fused), copy.deepcopy(fused), draw(BATCH, TIME, E)
    assert copied.fused
    monkeypatch.setattr(kernels, "load", lambda: False)
    again = pickle.loads(pickled)
    assert not again.fused
    assert not again.gates_h.norm.fuses_leaky_relu
    assert torch.equal(again(x), eager(x))


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


# --- single operators

B, T, N, S, C, A = 2, 2, 3, 3, 5, 4  # N hidden units, S source positions, C units of a key, A units of a value
FORMS = {  # kind, and whether eps is inside the root
    "none": (kernels.Kind.NONE, True),
    "rms": (kernels.Kind.RMS, True),
    "rms, outside": (kernels.Kind.RMS, False),
    "ln": (kernels.Kind.LAYER, True),
    "l2": (kernels.Kind.EUCLID, True),
}
SHORT = mask_of(torch.tensor([2, 1]), T)
SOURCE = mask_of(torch.tensor([3, 2]), S)
Operands = tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]  # function that calls an operator, and its arguments


def form_of(name: str, size: int) -> kernels.Form:
    """Return a form with two thirds of ``size`` units (at least one) in the statistic, for layer norm with all."""
    kind, inside = FORMS[name]
    return kernels.Form(kind, size if kind == kernels.Kind.LAYER else max(1, 2 * size // 3), inside)


def step_form(name: str, gates: int, inner: int) -> kernels.StepForm:
    gates_form = form_of(name, gates)
    return kernels.StepForm(gates_form.kind, gates_form.k, form_of(name, inner).k, gates_form.inside)


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [draw(*shape, seed=40 + i).requires_grad_() for i, shape in enumerate(shapes)]


def gru_operands(form: str, batch: int = B, *, reverse: bool = False) -> Operands:
    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        return (kernels.gru(*tensors, SHORT[:batch], step_form(form, 2 * N, N), 1e-2, reverse=reverse),)

    return call, leaves((batch, T, 3 * N), (batch, N), (3 * N, N), (3 * N,), (2, 2, 3 * N))


def lstm_operands(form: str, batch: int = B, *, reverse: bool = False) -> Operands:
    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        return (kernels.lstm(*tensors, SHORT[:batch], step_form(form, 4 * N, N), 1e-2, reverse=reverse),)

    return call, leaves((batch, T, 4 * N), (batch, N), (batch, N), (4 * N, N), (2, 2, 4 * N), (2, N))


def decoder_operands(form: str, batch: int = B) -> Operands:
    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        options = (step_form(form, 2 * N, N), form_of(form, C), 1e-2)
        return kernels.decoder(*tensors[:4], SOURCE[:batch], *tensors[4:], *options)

    data = ((batch, T, 3 * N), (batch, N), (batch, S, C), (batch, S, A))
    weights = ((3 * N, N), (C + 3 * N, N), (3 * N,), (3 * N, A), (C,))
    return call, leaves(*data, *weights, (2, 2, 3 * N), (2, 2, 3 * N), (2, C))


OPERATORS: dict[str, Callable[..., Operands]] = {
    "gru": gru_operands,
    "gru, reverse": partial(gru_operands, reverse=True),
    "lstm": lstm_operands,
    "lstm, reverse": partial(lstm_operands, reverse=True),
    "decoder": decoder_operands,
}
operators = pytest.mark.parametrize("operator", OPERATORS)


@operators
@pytest.mark.parametrize("form", FORMS)
def test_gradcheck(operator: str, form: str) -> None:
    call, tensors = OPERATORS[operator](form)
    assert torch.autograd.gradcheck(call, tensors)


@operators
@pytest.mark.parametrize("loss", ["sum", "squares"], ids=["constant gradient", "gradient that depends on the result"])
def test_second_derivatives_are_refused(operator: str, loss: str) -> None:
    call, tensors = OPERATORS[operator]("rms")
    first = call(*tensors)[0]
    value = first.sum() if loss == "sum" else first.square().sum()

    def penalised() -> None:
        (gradient,) = torch.autograd.grad(value, tensors[0], create_graph=True)
        (value + gradient.square().sum()).backward()

    with pytest.raises(RuntimeError, match=r"twice|second"):
        penalised()


@operators
@pytest.mark.parametrize("batch", [1, B])
@pytest.mark.parametrize("time_first", [False, True])
def test_incoming_gradients_are_not_overwritten(operator: str, batch: int, time_first: bool) -> None:
    call, tensors = OPERATORS[operator]("rms", batch)
    results = call(*tensors)
    sent = [draw(*result.shape) for result in results]
    if time_first:
        sent = [gradient.transpose(0, 1).contiguous().transpose(0, 1) for gradient in sent]
    before = [gradient.clone() for gradient in sent]
    torch.autograd.grad(results, tensors[0], sent)
    assert all(map(torch.equal, sent, before))


@pytest.mark.parametrize(
    ("operator", "place"),
    [(operator, place) for operator, count in {"gru": 5, "lstm": 6, "decoder": 12}.items() for place in range(count)],
)
def test_layouts_of_every_operand(operator: str, place: int) -> None:
    """An operand with gaps in memory gives the same results as a contiguous operand."""
    call, tensors = OPERATORS[operator]("ln")
    gaps = torch.stack([tensors[place], draw(*tensors[place].shape, seed=99)], -1).detach()[..., 0].requires_grad_()
    by_layout = []
    for operands in (tensors, [*tensors[:place], gaps, *tensors[place + 1 :]]):
        results = call(*operands)
        sent = [draw(*result.shape) for result in results]
        by_layout.append([*results, *torch.autograd.grad(results, operands, sent)])
    close(by_layout[1], by_layout[0])


WRONG: dict[
    str, tuple[int, Callable[[Tensor], Tensor]]
] = {  # place of an initial state, or -1 for the mask; the change
    "h0 of another batch": (1, lambda h0: torch.cat([h0, h0[:1]])),
    "h0 without a batch": (1, lambda h0: h0[0]),
    "c0 of another batch": (2, lambda c0: torch.cat([c0, c0[:1]])),
    "mask of another batch": (-1, lambda mask: torch.cat([mask, mask[:1]])),
    "mask of another time": (-1, lambda mask: torch.cat([mask, mask[:, :1]], 1)),
    "mask of one step": (-1, lambda mask: mask[:, :1]),
    "mask without a batch": (-1, lambda mask: mask[0]),
    "mask with another axis": (-1, lambda mask: mask.unsqueeze(-1)),
}


@pytest.mark.parametrize(
    ("operator", "wrong"),
    [*(("lstm", wrong) for wrong in WRONG), *(("gru", wrong) for wrong in WRONG if wrong[0] != "c")],
)
def test_states_and_masks_that_do_not_fit(operator: str, wrong: str) -> None:
    place, change = WRONG[wrong]
    _, tensors = OPERATORS[operator]("ln")
    function, form = getattr(kernels, operator), step_form("ln", {"gru": 2, "lstm": 4}[operator] * N, N)
    operands = [*tensors, SHORT]
    operands[place] = change(operands[place])
    with pytest.raises(ValueError, match=f"expected {wrong[:2] if place > 0 else 'mask'} of shape"):
        function(*operands, form, 1e-2, reverse=False)


@pytest.mark.parametrize("operator", ["gru", "lstm"])
def test_a_state_and_a_mask_of_one_row_are_those_of_every_row(operator: str) -> None:
    _, tensors = OPERATORS[operator]("ln")
    function, form = getattr(kernels, operator), step_form("ln", {"gru": 2, "lstm": 4}[operator] * N, N)
    states = {"gru": 1, "lstm": 2}[operator]
    x, initial, others = tensors[0], [state[:1] for state in tensors[1 : 1 + states]], tensors[1 + states :]
    by_size = [
        function(
            x,
            *(state.expand(rows, -1) for state in initial),
            *others,
            SHORT[1:].expand(rows, -1),
            form,
            1e-2,
            reverse=False,
        )
        for rows in (1, B)
    ]
    assert torch.equal(*by_size)


def test_operators_pass_opcheck() -> None:
    """opcheck tests schemas, autograd registration, and the shapes and strides of fake results.

    The mask is true everywhere: for padding, some saved values stay uninitialised, and opcheck compares all values.
    """
    check, ops = torch.library.opcheck, torch.ops.rmsexp
    real = torch.ones_like(SHORT)
    x, h0, weight, bias, affine = (tensor.detach() for tensor in gru_operands("ln")[1])
    options: tuple[Any, ...] = (real, False, step_form("ln", 2 * N, N), 1e-2)
    check(ops.gru_forward.default, (x, h0, weight, bias, affine, *options))
    saved = ops.gru_forward(x, h0, weight, bias, affine, *options)
    dout = draw(B, T, N)
    for each in (weight, transposed_in_memory(weight)):
        check(ops.gru_backward.default, (dout, x, each, True, affine, *options, saved))

    x, h0, c0, weight, *affines = (tensor.detach() for tensor in lstm_operands("ln")[1])
    options = (real, True, step_form("ln", 4 * N, N), 1e-2)
    check(ops.lstm_forward.default, (x, h0, c0, weight, *affines, *options))
    saved = ops.lstm_forward(x, h0, c0, weight, *affines, *options)
    for each in (weight, transposed_in_memory(weight)):
        check(ops.lstm_backward.default, (dout, x, each, *affines, *options, saved))


def transposed_in_memory(weight: Tensor) -> Tensor:
    """Return an equal tensor whose columns are contiguous."""
    return weight.t().contiguous().t()


@pytest.mark.parametrize("layout", ["batch first", "time first", "transposed weights"])
def test_the_operators_of_the_decoder_pass_opcheck(layout: str) -> None:
    check, ops = torch.library.opcheck, torch.ops.rmsexp
    x, s0, keys, values, *others = (tensor.detach() for tensor in decoder_operands("ln")[1])
    options = (step_form("ln", 2 * N, N), [kernels.Kind.LAYER, C, 1], 1e-2)
    check(ops.decoder_forward.default, (x, s0, keys, values, SOURCE, *others, *options))
    saved = ops.decoder_forward(x, s0, keys, values, SOURCE, *others, *options)
    w_first, w_between, _, *rest = others
    if layout == "transposed weights":
        w_first, w_between, rest[0] = map(transposed_in_memory, (w_first, w_between, rest[0]))
    sent = [draw(B, T, N), draw(B, T, A)]
    if layout == "time first":
        sent = [draw(T, B, size).transpose(0, 1) for size in (N, A)]
    check(
        ops.decoder_backward.default,
        (*sent, x, keys, values, SOURCE, w_first, w_between, True, *rest, *options, saved),
    )


# --- under torch.compile and autocast


@units
def test_compiled_equals_eager_mode(unit: str) -> None:
    _, fused = pair_of(unit, "rms")
    torch._dynamo.reset()
    compiled = torch.compile(fused, backend="aot_eager")
    for batch in (BATCH, 3):
        x = draw(batch, TIME, E).requires_grad_()
        results = []
        for layer in (compiled, fused):
            states = layer(x, MASK[:batch], initial_of(fused, batch), reverse=True) * MASK[:batch].unsqueeze(-1)
            results.append([states, *gradients(states, [x, *fused.parameters()])])
        close(results[0], results[1])


def assert_autocast_widens(results: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Assert that results are float32 and within 10 % of those without autocast: bfloat16 rounds by about 2^-9."""
    for result, exact in zip(results, expected, strict=True):
        assert result.dtype is torch.float32
        assert (result - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("name", ["ln", "prms"])
@units
def test_autocast_computes_in_float32(name: str, unit: str) -> None:
    _, fused = pair_of(unit, name, torch.float32)
    x, results = draw(BATCH, TIME, E).float().requires_grad_(), []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            states = fused(x, MASK, initial_of(fused))
        results.append([states, *gradients(states, [x, *fused.parameters()])])
    assert_autocast_widens(*results)


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


# --- whole models

SENTENCES = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=4)


def rnnsearch_pair(name: str, dtype: torch.dtype = torch.float64, embedding: int = 5, hidden: int = 9) -> Pair:
    return pair(lambda norm: RNNSearch(norm, SOURCES, TARGETS, embedding=embedding, hidden=hidden), name, dtype)


def theano_pair(name: str) -> Pair:
    """Return models as in Nematus for Theano: with an output matrix of their own, and a bias of the score."""
    sizes = {"embedding": 5, "hidden": 9}
    return pair(lambda norm: RNNSearch(norm, SOURCES, TARGETS, **sizes, tied=False, score_bias=True), name)  # type: ignore[arg-type]


def assert_models_agree(models: Pair, lengths: Sequence[tuple[int, int]]) -> None:
    batch, results = batch_of(pairs(lengths)), []
    for model in models:
        logits = model(batch)
        results.append([logits, *gradients(logits, list(model.parameters()))])
    close(results[1], results[0])


@every
def test_rnnsearch_in_float32(name: str) -> None:
    assert_models_agree(rnnsearch_pair(name, torch.float32), RAGGED)


@every
def test_rnnsearch_as_in_theano(name: str) -> None:
    """The fused decoder leaves the score's bias out; without it, the gradient is zero up to rounding."""
    assert_models_agree(theano_pair(name), RAGGED)


@settings(PROPERTY, max_examples=25)
@given(st.sampled_from(list(NORMS)), SENTENCES, st.integers(1, 6), st.integers(1, 12))
def test_rnnsearch_of_any_lengths_and_sizes(
    name: str, lengths: list[tuple[int, int]], embedding: int, hidden: int
) -> None:
    assert_models_agree(rnnsearch_pair(name, embedding=embedding, hidden=hidden), lengths)


@pytest.mark.parametrize("name", ["none", "ln", "prms"])
def test_rnnsearch_decodes_step_by_step_as_in_training(name: str) -> None:
    _, fused = rnnsearch_pair(name)
    assert_steps_are_forward(fused, batch_of(pairs(RAGGED)))


def test_rnnsearch_with_a_constant_source_side() -> None:
    """Gradients agree if only the decoder is trained, so that keys and annotations need none."""
    batch, results = batch_of(pairs(RAGGED)), []
    for model in rnnsearch_pair("rms"):
        for part in (model.forward_gru, model.backward_gru, model.keys, model.initial):
            part.requires_grad_(False)
        model.source_embedding.requires_grad_(False)
        logits = model(batch)
        results.append([logits, *gradients(logits, [p for p in model.parameters() if p.requires_grad])])
    close(results[1], results[0])


def test_rnnsearch_compiled_equals_eager_mode() -> None:
    _, fused = rnnsearch_pair("ln")
    torch._dynamo.reset()
    compiled, batch, results = torch.compile(fused, backend="aot_eager"), batch_of(pairs(RAGGED)), []
    for model in (compiled, fused):
        logits = model(batch)
        results.append([logits, *gradients(logits, list(fused.parameters()))])
    close(results[0], results[1])


def test_rnnsearch_under_autocast() -> None:
    _, fused = rnnsearch_pair("rms", torch.float32)
    batch, results = batch_of(pairs(RAGGED)), []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logits = fused(batch)
        results.append([logits.float(), *gradients(logits, list(fused.parameters()))])
    assert_autocast_widens(*results)


# --- tasks

every_task = pytest.mark.parametrize(
    "task", ["cifar10", "language_model", *translation_tasks.TASKS, *reading_and_retrieval.TASKS]
)


@pytest.fixture
def words(task: str, request: pytest.FixtureRequest) -> list[str]:
    """Return the command line of a task at demo scale with a smaller model."""
    if task == "cifar10":
        return ["task=cifar10", "model.width=0.05", "batch_size=8", f"data.root={request.getfixturevalue('data_root')}"]
    if task in translation_tasks.TASKS:
        root = request.getfixturevalue("text_root")
        return [*translation_tasks.tiny(task), *translation_tasks.SHORT, f"data.root={root}"]
    request.getfixturevalue("small_synthetic_data")
    return list(language_models.TINY) if task == "language_model" else reading_and_retrieval.tiny(task)


@every_task
def test_objectives_agree(task: str, words: list[str]) -> None:
    results = []
    for impl in ("eager", "fused"):
        instance, model = task_and_model(*words, "norm=prms", "norm.p=0.5", f"norm.impl={impl}")
        batch = instance.batches(0)[0]
        if task == "order_embedding":
            batch = batch._replace(features=batch.features.double())
        if task == "cifar10":
            batch = (batch[0].double(), batch[1])
        loss = instance.objective(model.double(), batch, StreamNoise(0, "noise", 0, 0)).loss
        results.append([loss, *gradients(loss, list(model.parameters()))])
    close(results[1], results[0])


@every_task
def test_a_fused_run_has_the_losses_of_an_eager_run(main: Main, tmp_path: Path, words: list[str]) -> None:
    """The losses of three training steps, and of the evaluations before and after them, are equal up to rounding.

    In float32, the gradients of the first step differ by about 1e-6 of their size, and the optimiser's steps propagate
    this difference. The largest observed relative difference of a loss is 4e-6.
    """
    for impl in ("eager", "fused"):
        done = main(*words, "norm=rms", f"norm.impl={impl}", "max_steps=3", "eval_every=3", "checkpoint_every=3")
        assert done.status == 0, done.err
    runs = {run.run["impl"]: run for run in map(record.read, record.find_runs(tmp_path))}
    losses = {impl: [(row["split"], row["step"], row["loss"]) for row in run.metrics] for impl, run in runs.items()}
    assert len(losses["eager"]) >= 5
    for fused, eager in zip(losses["fused"], losses["eager"], strict=True):
        assert fused == (*eager[:2], pytest.approx(eager[2], rel=2e-5))


@pytest.mark.parametrize("norm", ["bn", "mean_only_bn"])
def test_batch_norms_have_no_fused_form(main: Main, norm: str) -> None:
    main(f"norm={norm}", "norm.impl=fused").assert_refused("norm.impl=fused is not known (one of eager)")
