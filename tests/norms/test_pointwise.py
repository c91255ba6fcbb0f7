"""DyT and Derf against literal formulas, in values and gradients; their parameters; recurrences, which run by step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from helpers.sites import draw, fill
from torch import Tensor, nn

from rmsexp import norms
from rmsexp.models import recurrent
from rmsexp.models.convpool import ConvPool
from rmsexp.train.optim import AdamWConfig

LAYERS: dict[str, type[norms.DynamicTanh]] = {"dyt": norms.DynamicTanh, "derf": norms.DynamicErf}
OPTIONS: dict[str, norms.Norm] = {"dyt": norms.DyT(name="dyt"), "derf": norms.Derf(name="derf")}
every = pytest.mark.parametrize("name", LAYERS)
UNITS: dict[str, Callable[..., nn.Module]] = {"GRU": recurrent.GRU, "LSTM": recurrent.LSTM}


def function_and_derivative(name: str, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return f(u) and f'(u), element by element with Python's own functions."""
    if name == "dyt":
        return u.clone().apply_(math.tanh), u.clone().apply_(lambda v: 1 / math.cosh(v) ** 2)
    return u.clone().apply_(math.erf), u.clone().apply_(lambda v: 2 / math.sqrt(math.pi) * math.exp(-(v**2)))


@every
@pytest.mark.parametrize("maps", [False, True], ids=["rows", "maps"])
def test_values_and_gradients_equal_the_formulas(name: str, maps: bool, impl: str) -> None:
    """With u = alpha x + s and h = g dy f'(u): dx = alpha h, dalpha = sum h x, ds = sum h, dg = sum dy f(u)."""
    layer = fill(LAYERS[name](5, 0.7, impl=impl, maps=maps))
    x = draw(3, 5, 2, 4).requires_grad_() if maps else draw(4, 3, 5).requires_grad_()
    dy = draw(*x.shape, seed=2)
    y = layer(x)
    y.backward(dy)
    a, over = x.detach(), (0, 2, 3) if maps else (0, 1)
    gain, shift = (v.detach().view(-1, *[1] * (2 if maps else 0)) for v in (layer.weight, layer.bias))
    u = layer.alpha.detach() * a + (0 if layer.offset is None else layer.offset.detach())
    value, derivative = function_and_derivative(name, u)
    h = dy * gain * derivative
    expected = {"weight": (dy * value).sum(over), "bias": dy.sum(over), "alpha": (h * a).sum().view(1)}
    expected |= {} if name == "dyt" else {"offset": h.sum().view(1)}
    torch.testing.assert_close(y.detach(), value * gain + shift, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(x.grad, layer.alpha.detach() * h, rtol=1e-12, atol=1e-12)
    gradients = {key: parameter.grad for key, parameter in layer.named_parameters()}
    torch.testing.assert_close(gradients, expected, rtol=1e-12, atol=1e-12)


@every
def test_half_precision_is_computed_in_float32(name: str, impl: str) -> None:
    layer = fill(LAYERS[name](64, impl=impl)).float()
    x = draw(4, 64).bfloat16()
    assert torch.equal(layer(x), layer(x.float()).bfloat16())


@every
def test_parameters_at_the_start(name: str) -> None:
    layer = OPTIONS[name].linear("a", 3, 4).norm
    numbers = {"alpha": torch.tensor([0.5])} | ({} if name == "dyt" else {"offset": torch.zeros(1)})
    vectors = {"weight": torch.ones(4), "bias": torch.zeros(4)}
    torch.testing.assert_close(dict(layer.state_dict()), {**vectors, **numbers})
    assert OPTIONS[name].linear("a", 3, 4, shift=False).norm.bias is None
    assert replace(OPTIONS[name], alpha=0.2).value("a", 3).alpha.item() == pytest.approx(0.2)
    *_, undecayed = AdamWConfig(lr=0.1, beta2=0.95, eps=1e-8).optimizer(layer.parameters()).param_groups
    assert (undecayed["weight_decay"], len(undecayed["params"])) == (0.0, len(list(layer.parameters())))


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan, math.inf])
def test_other_alphas_are_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match=r"norm.alpha must be a finite number greater than 0"):
        norms.DyT(name="dyt", alpha=alpha)
    with pytest.raises(ValueError, match="alpha must be a finite number greater than 0"):
        norms.DynamicErf(4, alpha)


@pytest.mark.slow
@pytest.mark.usefixtures("fused_kernels")
@every
@pytest.mark.parametrize("unit", UNITS)
def test_recurrences_run_by_step_with_fused_norms(name: str, unit: str) -> None:
    x, mask = draw(3, 4, 5), torch.arange(4) < torch.tensor([[4], [2], [3]])
    outputs = []
    for impl in ("eager", "fused"):
        norm = replace(OPTIONS[name], impl=impl)
        layer = fill(UNITS[unit](norm, "unit", 5, 6))
        states = layer(x, mask) * mask.unsqueeze(-1)
        outputs.append([states, *torch.autograd.grad(states.pow(2).sum(), list(layer.parameters()))])
        assert not layer.fused
        assert recurrent.impl_of(norm, layer) == {"eager": "eager", "fused": "fused norms"}[impl]
        assert recurrent.impl_of(norm, ConvPool(norm, width=0.05)) == impl
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-10, atol=1e-10)
