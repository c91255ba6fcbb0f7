"""The operators of the fused recurrences: gradients, memory layouts, torch's own checks."""

from typing import Any

import pytest
import torch
from helpers.fused_pairs import close
from helpers.sequences import CELLS, form_of, inputs_of
from helpers.sites import draw
from torch import Tensor

from rmsexp.norms import kernels
from rmsexp.norms.kernels.recurrences import INPUTS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]

operators = pytest.mark.parametrize(
    ("cell", "reverse"), [*((cell, False) for cell in CELLS), ("gru", True), ("lstm", True)]
)


def run(cell: str, form: str, inputs: dict[str, Any], *, reverse: bool = False) -> tuple[Tensor, ...]:
    results = kernels.sequence(cell, form_of(cell, form), 1e-2, inputs, reverse=reverse)
    return results if isinstance(results, tuple) else (results,)


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
