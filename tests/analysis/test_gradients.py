"""Section 4.2 of the paper: how gradients scale with weights and data.

The loss is ``sum(D * y)`` with a random constant D, so only the layer changes the gradients. Shapes: W ``(N_OUT,
N_IN)``, x ``(EXAMPLES, N_IN)``, D and y ``(EXAMPLES, N_OUT)``.
"""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from rmsexp.analysis.site import EXAMPLES, N_IN, N_OUT, draw, norm, site
from rmsexp.norms import Linear

PARAMETERS = {"bias": "b", "norm.bias": "b", "norm.weight": "g", "reparametrisation.gain": "g"}
PAPER = [-1, 0, 0, 0, 0, -1, 0, 0]  # of RMSNorm
# exponents k: dL/dW, dL/dx, dL/dg, dL/db scale as delta^k when W is multiplied by delta, then when x is
EXPONENTS = {
    "none": [0, 1, None, 0, 1, 0, None, 0],
    "wn": [-1, 0, 0, 0, 1, 0, 1, 0],
    **dict.fromkeys(("ln", "rms", "prms", "bn"), PAPER),
    "rms+gain=false": [-1, 0, None, 0, 0, -1, None, 0],
    # dL/db is the sum of D; the others shrink where the function saturates, and grow where it is linear
    **{name: [math.nan, math.nan, math.nan, 0] * 2 for name in ("dyt", "derf")},
}
DELTAS = (0.01, 1.0, 100.0)


def sizes(layer: Linear, weight: Tensor, x: Tensor, upstream: Tensor) -> dict[str, float]:
    """Return the norms of the loss's gradients with respect to W and x, and to g and b if the layer has them."""
    weight, x = (value.detach().requires_grad_() for value in (weight, x))
    leaves = {"W": weight, "x": x}
    leaves |= {PARAMETERS[name]: value for name, value in layer.named_parameters() if name in PARAMETERS}
    loss = (functional_call(layer, {"weight": weight}, (x,)) * upstream).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {name: float(gradient.norm()) for name, gradient in zip(leaves, gradients, strict=True)}


def test_gradients_of_rmsnorm_equal_the_formulas_of_section_4_2() -> None:
    layer = site(norm("rms"))
    x, upstream = draw((EXAMPLES, N_IN), "test", "x"), draw((EXAMPLES, N_OUT), "test", "upstream")
    state = {name: value.numpy() for name, value in layer.state_dict().items()}
    weight, gain = state["weight"], state["norm.weight"]
    shapes = {"W": (N_OUT, N_IN), "x": (EXAMPLES, N_IN), "g": N_OUT, "b": N_OUT}
    expected = {name: np.zeros(shape) for name, shape in shapes.items()}
    for number, (row, d) in enumerate(zip(x.numpy(), upstream.numpy(), strict=True)):
        a = weight @ row
        rms = np.sqrt((a**2).mean())
        matrix = (np.eye(N_OUT) - np.outer(a, a) / (N_OUT * rms**2)) / rms
        expected["W"] += np.outer(matrix @ (gain * d), row)
        expected["x"][number] = weight.T @ matrix @ (gain * d)
        expected["g"] += d * a / rms
        expected["b"] += d
    found = sizes(layer, layer.weight, x, upstream)
    assert found == pytest.approx({name: np.linalg.norm(value) for name, value in expected.items()}, rel=1e-12)


@pytest.mark.parametrize("name", EXPONENTS)
def test_gradients_scale_with_the_powers_of_section_4_2(name: str) -> None:
    layer, x, upstream = site(norm(name)), draw((EXAMPLES, N_IN), "x"), draw((EXAMPLES, N_OUT), "upstream")
    found: list[float | None] = []
    for of_weight in (True, False):
        runs = [
            sizes(layer, layer.weight * (delta if of_weight else 1), x * (1 if of_weight else delta), upstream)
            for delta in DELTAS
        ]
        for variable in "Wxgb":
            logs = np.log10([run.get(variable, 1.0) for run in runs])
            first, second = np.diff(logs) / np.diff(np.log10(DELTAS))
            is_power = abs(first - second) < 1e-6
            found.append(None if variable not in runs[0] else first if is_power else math.nan)
    expected = EXPONENTS[name]
    assert [value is None for value in found] == [value is None for value in expected]
    known = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None and b is not None]
    assert [a for a, _ in known] == pytest.approx([b for _, b in known], abs=1e-6, nan_ok=True)
