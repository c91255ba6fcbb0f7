"""The layers in the place of torch's own: state dicts, arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers.sites import draw as draw_float64
from torch import Tensor, nn

from rmsexp import norms

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
