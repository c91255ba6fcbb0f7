"""The operators of the fused recurrences: gradients, memory layouts, wrong arguments, torch's own checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers.fused_pairs import close, mask_of
from helpers.sites import draw
from torch import Tensor

from rmsexp.norms import kernels

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
