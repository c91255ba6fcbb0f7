"""The operators of the fused recurrences: gradients, memory layouts, wrong arguments, torch's own checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from helpers.fused_pairs import close, mask_of
from helpers.sites import draw
from torch import Tensor

from rmsexp.norms import kernels
from rmsexp.norms.kernels.recurrences import INPUTS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]

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


@operators
@pytest.mark.parametrize("layout", ["batch first", "time first", "transposed weights"])
def test_operators_pass_opcheck(operator: str, layout: str) -> None:
    """opcheck tests schemas, autograd registration, and the shapes and strides of fake results.

    The mask of time steps is true everywhere: for padding, some saved values stay uninitialised, and opcheck compares
    all values.
    """
    cell, reverse = operator.split(",")[0], operator.endswith("reverse")
    tensors = [tensor.detach() for tensor in OPERATORS[operator]("ln")[1]]
    forms = {"gru": step_form("ln", 2 * N, N), "lstm": step_form("ln", 4 * N, N)}
    options = (reverse, [*forms.get(cell, (*forms["gru"], kernels.Kind.LAYER, C, 1))], 1e-2)
    sent = [draw(B, T, N)] + [draw(B, T, A)] * (cell == "decoder")
    if cell == "decoder":
        x, s0, keys, values, w_first, w_between, bias, *others = tensors
        inputs = [x, s0, keys, values, w_first, w_between, *others, bias, SOURCE]
    elif cell == "gru":
        x, h0, weight, bias, affine = tensors
        inputs = [x, h0, weight, affine, bias, torch.ones_like(SHORT)]
    else:
        inputs = [*tensors, torch.ones_like(SHORT)]
    if layout == "transposed weights":
        weights = [place for place, name in enumerate(INPUTS[cell]) if name.startswith("w")]
        inputs = [tensor.t().contiguous().t() if place in weights else tensor for place, tensor in enumerate(inputs)]
    elif layout == "time first":
        sent = [gradient.transpose(0, 1).contiguous().transpose(0, 1) for gradient in sent]
    forward, backward = (getattr(torch.ops.rmsexp, f"{cell}_{which}").default for which in ("forward", "backward"))
    torch.library.opcheck(forward, (inputs, *options))
    torch.library.opcheck(backward, (sent, inputs, forward(inputs, *options), *options))
