"""The operators of the fused recurrences: gradients, memory layouts, torch's own checks."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from helpers.fused_pairs import close
from helpers.sequences import CELLS, form_of, inputs_of
from helpers.sites import draw
from torch import Tensor

from rmsexp.norms import kernels
from rmsexp.norms.kernels import graphs, recurrences
from rmsexp.norms.kernels.recurrences import INPUTS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]

operators = pytest.mark.parametrize(
    ("cell", "reverse"), [*((cell, False) for cell in CELLS), ("gru", True), ("lstm", True)]
)


def run(cell: str, form: str, inputs: dict[str, Any], *, reverse: bool = False) -> tuple[Tensor, ...]:
    return kernels.sequence(cell, form_of(cell, form), 1e-2, inputs, reverse=reverse)


def leaves_of(inputs: dict[str, Tensor]) -> list[Tensor]:
    return [tensor.requires_grad_() for name, tensor in inputs.items() if name != "mask"]


@operators
@pytest.mark.parametrize("loss", ["sum", "squares"], ids=["constant gradient", "gradient that depends on the result"])
def test_second_derivatives_are_refused(cell: str, reverse: bool, loss: str) -> None:
    inputs = inputs_of(cell)
    leaves_of(inputs)
    first = run(cell, "rms", inputs, reverse=reverse)[0]
    value = first.sum() if loss == "sum" else first.square().sum()

    def penalised() -> None:
        (gradient,) = torch.autograd.grad(value, inputs["x"], create_graph=True)
        (value + gradient.square().sum()).backward()

    with pytest.raises(RuntimeError, match=r"twice|second"):
        penalised()


@pytest.mark.parametrize(("cell", "name"), [(cell, name) for cell in CELLS for name in INPUTS[cell] if name != "mask"])
def test_layouts_of_every_operand(cell: str, name: str) -> None:
    """An operand with gaps in memory gives the same results as a contiguous operand."""
    by_layout = []
    for gaps in (False, True):
        inputs = inputs_of(cell)
        if gaps:
            inputs[name] = torch.stack([inputs[name], draw(*inputs[name].shape, seed=99)], -1)[..., 0]
        leaves, results = leaves_of(inputs), run(cell, "ln", inputs)
        sent = [draw(*result.shape) for result in results]
        by_layout.append([*results, *torch.autograd.grad(results, leaves, sent)])
    close(by_layout[1], by_layout[0])


@operators
@pytest.mark.parametrize("padding", [True, False], ids=["padding", "no mask"])
@pytest.mark.parametrize("time", [1, 4, 5])
def test_parts_of_sequences_as_on_a_gpu(
    cell: str, reverse: bool, padding: bool, time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrences, "PART", 2)
    inputs = inputs_of(cell, padding=padding and time > 1, time=time)
    options, leaves, found = (cell, reverse, form_of(cell, "ln"), 1e-2), leaves_of(inputs), []
    given = inputs | ({"mask": None} if cell != "decoder" and not padding else {})
    for results in (
        recurrences._Sequence.apply(*options, *given.values())[: 1 + (cell == "decoder")],
        recurrences._in_parts(*options, given),
    ):
        sent = [draw(*result.shape) for result in results]
        found.append([*results, *torch.autograd.grad(results, leaves, sent)])
    close(found[1], found[0])


def test_operators_are_recorded_when_shapes_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[tuple[int, ...]]()

    class Recorded:
        """In place of a CUDA graph: calls the function."""

        def __init__(self, function: Any, tensors: Any) -> None:
            self.function = function
            made.append(tuple(tensors[0].shape))

        def __call__(self, tensors: Any) -> Any:
            return self.function(tensors)

    monkeypatch.setattr(graphs, "Graph", Recorded)
    monkeypatch.setattr(graphs, "_stream", lambda _: "stream")
    monkeypatch.setattr(graphs, "_graphs", {})
    monkeypatch.setattr(graphs, "KEPT", 4)

    def outcome(time: int) -> list[Tensor]:
        inputs = inputs_of("lstm", time=time)
        leaves = leaves_of(inputs)
        (states,) = run("lstm", "rms", inputs)
        return [states, *torch.autograd.grad(states.square().sum(), leaves)]

    first = outcome(2)
    assert not made
    for _ in range(2):
        for again, once in zip(outcome(2), first, strict=True):
            assert torch.equal(again, once)
    assert len(made) == 2  # the forward and the backward pass
    for time in (3, 2, 4, 3):  # those of 3 make room for 4, and are not recorded when they come again
        outcome(time)
    assert len(made) == 2
    monkeypatch.setattr(graphs, "Graph", Mock(side_effect=RuntimeError("no memory")))
    monkeypatch.setattr(graphs, "_graphs", {})
    for _ in range(4):
        assert torch.equal(outcome(2)[0], first[0])
    assert graphs.Graph.call_count == 2  # tried once for each pass
