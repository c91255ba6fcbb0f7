"""The layers in the place of torch's own: tracing, scripting, state dicts, arguments."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers.sites import NORMS, fill
from helpers.sites import draw as draw_float64
from torch import Tensor, nn

from rmsexp import norms
from rmsexp.models.recurrent import GRU, LSTM

N = 8
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "rms": partial(norms.RMSNorm, N),
    "prms": partial(norms.RMSNorm, N, p=0.5, eps_inside=False),
    "offset": partial(norms.RMSNorm, N, weight_offset=True, bias=True),
    "l2": partial(norms.L2Norm, N),
    "ln": partial(norms.LayerNorm, N),
    "dyt": partial(norms.DynamicTanh, N),
    "derf": partial(norms.DynamicErf, N),
    "bn": partial(norms.BatchNorm, N),
    "mean_only_bn": partial(norms.MeanOnlyBatchNorm, N),
    "wn": partial(norms.WeightNorm, N),
}
WITHOUT_IMPL = ("bn", "mean_only_bn", "wn")
PAIRS = ((norms.RMSNorm, nn.RMSNorm), (norms.LayerNorm, nn.LayerNorm))
pairs = pytest.mark.parametrize(("ours", "torchs"), PAIRS, ids=["rms", "ln"])


def made(name: str, impl: str, **options: Any) -> nn.Module:
    return LAYERS[name](**options) if name in WITHOUT_IMPL else LAYERS[name](impl=impl, **options)


def draw(*shape: int) -> Tensor:
    return draw_float64(*shape).float()


# --- torch.fx


def check_traced(model: nn.Module, x: Tensor) -> torch.fx.GraphModule:
    """Check that the traced model, its copy and its pickle compute what the model does, and train its parameters."""
    traced = torch.fx.symbolic_trace(model)
    assert traced.training == model.training
    assert {id(p) for p in traced.parameters()} == {id(p) for p in model.parameters()}
    for each in (traced, copy.deepcopy(traced), pickle.loads(pickle.dumps(traced))):
        torch.testing.assert_close(each(x), model(x))
    return traced


@pytest.mark.parametrize("name", LAYERS)
def test_torch_fx_records_a_layer_as_one_call(name: str, impl: str) -> None:
    layer, x = made(name, impl), draw(N, N)
    traced = check_traced(nn.Sequential(nn.Linear(N, N), layer), x)
    assert [(node.op, node.target) for node in traced.graph.nodes][1:3] == [("call_module", "0"), ("call_module", "1")]
    check_traced(made(name, impl).eval(), x)  # the layer alone


@pytest.mark.parametrize("unit", [GRU, LSTM])
@pytest.mark.parametrize("name", ["rms", "ln", "bn", "wn", "none"])
def test_torch_fx_traces_sites_and_recurrences(name: str, unit: Any) -> None:
    x = draw(3, 5, N)
    for model in (unit(NORMS[name], "unit", N, N), NORMS[name].linear("site", N, N)):
        check_traced(nn.Sequential(nn.Linear(N, N), fill(model).float()).eval(), x)


# --- torch.jit


@pytest.mark.filterwarnings(r"ignore:.torch.jit.script.* is deprecated")
@pairs
def test_torch_jit_compiles_torch_s_layer(ours: Any, torchs: Any, impl: str) -> None:
    model, x = nn.Sequential(nn.Linear(N, N), ours(N, 1e-3, impl=impl)), draw(3, N)
    parameters = dict(model.named_parameters())
    expected = model(x)
    scripted = torch.jit.script(model)
    torch.testing.assert_close(scripted(x), expected)
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert type(ours(N).torch_layer()) is torchs


@pytest.mark.filterwarnings(r"ignore:.torch.jit.script.* is deprecated")
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("rms", "ln", "wn")])
def test_torch_jit_refuses_layers_that_torch_lacks(name: str, impl: str) -> None:
    with pytest.raises(TypeError, match=r"torch.jit.script cannot compile this \w+; use torch.export"):
        torch.jit.script(nn.Sequential(made(name, impl)))


# --- state dicts


@pytest.mark.parametrize("wrap", [lambda layer: layer, nn.Sequential], ids=["layer", "model"])
def test_a_bias_is_neither_dropped_nor_made_up(wrap: Callable[..., nn.Module]) -> None:
    rms, ln = (wrap(layer(N)) for layer in (norms.RMSNorm, norms.LayerNorm))
    with pytest.raises(RuntimeError, match=r"Unexpected key.*bias"):
        rms.load_state_dict(wrap(nn.LayerNorm(N)).state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key.*bias"):
        ln.load_state_dict(wrap(nn.RMSNorm(N)).state_dict())
    gain = torch.arange(N).float()
    for layer in (rms, ln):
        key = next(iter(layer.state_dict()))
        layer.load_state_dict({key: gain}, strict=False)
        assert torch.equal(layer.state_dict()[key], gain)
    wrap(norms.RMSNorm(N, bias=True)).load_state_dict(wrap(nn.LayerNorm(N)).state_dict())
    wrap(norms.LayerNorm(N, bias=False)).load_state_dict(wrap(nn.RMSNorm(N)).state_dict())


def test_the_authors_names_of_parameters_are_known() -> None:
    gain, shift = draw(2, N)
    model = nn.Sequential(norms.RMSNorm(N, bias=True), norms.RMSNorm(N))
    state = {"0.scale": gain, "0.offset": shift, "1.scale": gain}
    model.load_state_dict(state)
    assert torch.equal(model[0].weight, gain)
    assert torch.equal(model[0].bias, shift)
    assert torch.equal(model[1].weight, gain)
    assert list(state) == ["0.scale", "0.offset", "1.scale"]


def test_a_parametrised_bias_is_no_missing_bias() -> None:
    layers = [norms.LayerNorm(N) for _ in range(2)]
    for layer in layers:
        nn.utils.parametrize.register_parametrization(layer, "bias", nn.Identity())
    with torch.no_grad():
        layers[1].parametrizations.bias.original.fill_(3.0)
    layers[0].load_state_dict(layers[1].state_dict())
    assert torch.equal(layers[0].bias, torch.full((N,), 3.0))


# --- arguments


@pairs
def test_arguments_have_the_order_of_torch_s(ours: Any, torchs: Any) -> None:
    for shape in (N, [3, N], torch.Size([N])):
        bias = (True,) * (torchs is nn.LayerNorm)
        layers = [layer(shape, 1e-3, True, *bias, "meta", torch.float64) for layer in (ours, torchs)]
        assert [p.dtype for p in layers[0].parameters()] == [p.dtype for p in layers[1].parameters()]
        assert all(p.is_meta for p in layers[0].parameters())
        assert layers[0].normalized_shape == layers[1].normalized_shape


@pytest.mark.parametrize("eps", [-0.5, -1e-3])
@pairs
def test_a_negative_eps_is_computed_as_torch_does(ours: Any, torchs: Any, eps: float, impl: str) -> None:
    x = draw_float64(64, N)
    results = []
    for layer in (ours(N, eps, impl=impl, dtype=x.dtype), torchs(N, eps, dtype=x.dtype)):
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        results.append((y, *torch.autograd.grad(y.nan_to_num().sum(), leaf)))
    torch.testing.assert_close(results[0], results[1], equal_nan=True)
