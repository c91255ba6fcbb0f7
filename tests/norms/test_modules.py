"""Norm layers as modules of torch, and in the place of torch's own: state, subclasses, options, refused input."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers.sites import draw
from torch import Tensor, nn

from rmsexp import norms

LAYERS: dict[str, Callable[..., norms.Normaliser]] = {
    "rms": partial(norms.RMSNorm, 4, bias=True),
    "rms, no gain": partial(norms.RMSNorm, (3, 4), 1e-3, elementwise_affine=False),
    "rms, maps": partial(norms.RMSNorm, 4, p=0.5, axes=(2, 3)),
    "dyt": partial(norms.DynamicTanh, 4, 0.2, bias=False),
}
N = 8
PAIRS = ((norms.RMSNorm, nn.RMSNorm), (norms.LayerNorm, nn.LayerNorm))
pairs = pytest.mark.parametrize(("ours", "torchs"), PAIRS, ids=["rms", "ln"])


def input_of(layer: norms.Normaliser) -> Tensor:
    return draw(3, 4, 2, 5) if layer.maps else draw(3, *layer.shape)


# --- conventions of torch.nn


@pytest.mark.parametrize("name", LAYERS)
def test_copies_compute_the_same(name: str, impl: str) -> None:
    layer = LAYERS[name](impl=impl).double()
    assert layer.elementwise_affine == ("no gain" not in name)
    x = input_of(layer)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_form_for_recurrences_has_the_eps_of_the_layer(dtype: torch.dtype) -> None:
    assert norms.RMSNorm(4, None).form(4, dtype).eps == torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    assert norms.RMSNorm(4, 0.0).form(4, dtype).eps == 0


# --- subclasses


def doubled(base: Any, method: str) -> Callable[..., Any]:
    """Return a method that returns twice what that of ``base`` does; of ``standardise``, twice the scale."""

    def changed(self: Any, *arguments: Any, **options: Any) -> Any:
        result = getattr(base, method)(self, *arguments, **options)
        return (result[0], 2 * result[1]) if method == "standardise" else 2 * result

    return changed


@pytest.mark.parametrize("mixin", [False, True])
@pytest.mark.parametrize(
    ("base", "method", "factor"),
    [
        *((base, "standardise", 2.0) for base in (norms.RMSNorm, norms.L2Norm, norms.LayerNorm)),
        *((norms.RMSNorm, "forward", 2.0), (norms.RMSNorm, "divisor", 2**0.5)),
    ],
)
def test_a_subclass_with_another_formula_has_no_kernel(
    base: Any, method: str, factor: float, mixin: bool, impl: str
) -> None:
    methods = {method: doubled(base, method)}
    changed: Any = type("Changed", (type("Mixin", (), methods), base) if mixin else (base,), {} if mixin else methods)
    layer, x = changed(4, 0.0, impl=impl).double(), draw(3, 4)
    torch.testing.assert_close(layer(x), factor * base(4, 0.0).double()(x))
    torch.testing.assert_close(layer.add(x, x)[1], layer(2 * x))
    renamed, with_kernel = type("Renamed", (base,), {}), type("Declared", (changed,), {"kind": base.kind, **methods})
    assert [kind.kind for kind in (changed, renamed, with_kernel)] == [None, base.kind, base.kind]
    with pytest.raises(NotImplementedError, match="Changed"):
        layer.form(4)


def test_fused_norms_without_a_kernel_are_refused() -> None:
    """Otherwise the record would say "fused" of elementary operations."""

    class Doubled(norms.RMSNorm):
        def standardise(self, x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
            return super().standardise(2 * x, axes, eps)

    @dataclass(frozen=True, kw_only=True)
    class Mine(norms.RMS):
        def normaliser(self, site: norms.Site) -> Doubled:
            return Doubled(site.features, impl=self.impl)

    class Halved(norms.DynamicTanh):
        def forward(self, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
            return super().forward(x, *arguments, **options) / 2

    assert norms.DynamicErf.fusible
    assert not Halved(4, impl="fused").fused
    eager, fused = Mine(name="mine"), Mine(name="mine", impl="fused")
    eager.check_effect(eager.linear("layer", 3, 4))
    with pytest.raises(ValueError, match=r"norm\.impl"):
        fused.check_effect(fused.linear("layer", 3, 4))
    for norm in (norms.RMS(name="rms", impl="fused"), norms.NoNorm(name="none", impl="fused")):
        norm.check_effect(norm.linear("layer", 3, 4))


# --- options changed later


@pytest.mark.slow
@pytest.mark.usefixtures("fused_kernels")
@pytest.mark.parametrize("name", ["rms", "rms, maps", "dyt"])
def test_a_changed_impl_takes_effect(name: str) -> None:
    layer = LAYERS[name]()
    x = input_of(layer).float().requires_grad_()
    for impl, fused in (("fused", True), ("eager", False)):
        layer.impl = impl
        assert (layer.impl, layer.fused) == (impl, fused)
        assert ("rmsexp" in layer(x).grad_fn.name()) == fused


# --- refused arguments and input


def called(
    make: Callable[..., nn.Module], *shape: int, dtype: torch.dtype = torch.float32, **options: Any
) -> Callable[..., object]:
    """Return a function that makes a layer, and calls it with ones of this shape."""
    return lambda **impl: make(**impl)(torch.ones(shape, dtype=dtype), **options)


def changed(**attributes: Any) -> Callable[..., object]:
    """Return a function that makes a layer, and then changes its attributes."""

    def make(**impl: str) -> None:
        layer = norms.RMSNorm(4, axes=(2, 3), **impl)
        for name, value in attributes.items():
            setattr(layer, name, value)

    return make


def with_parameter(name: str, normalized: tuple[int, ...], *shape: int) -> Callable[..., nn.Module]:
    """Return a function that makes a layer whose gain or shift has another shape, which may broadcast."""

    def make(**impl: str) -> nn.Module:
        layer = norms.LayerNorm(normalized, **impl)
        setattr(layer, name, nn.Parameter(torch.ones(shape)))
        return layer

    return make


OF_MAPS = [partial(norms.RMSNorm, 4, axes=axes, elementwise_affine=False) for axes in ((2, 3), (1, 2, 3))]
SHAPES_OF_PARAMETERS = [((1, 2, 3), (1, 2)), ((3, 5), (15,)), ((3, 5), (5,)), ((4,), (1,)), ((4,), ()), ((4,), (2, 4))]
MISTAKES: dict[tuple[type[Exception], str], list[Callable[..., object]]] = {  # the error and what it names, and calls
    (ValueError, "axes"): [
        partial(norms.RMSNorm, 4, axes=axes) for axes in ((1, 2), (0,), (3, 2), (-2, -1), (), (2, 3, 4))
    ],
    (ValueError, "channels"): [partial(norms.RMSNorm, (4, 4), axes=(2, 3))],
    (ValueError, "feature maps"): [
        called(make, *shape)
        for shape in ((4, 4), (4, 4, 4), (2, 4, 4, 4, 4), (2, 5, 3, 3), (2, 1, 3, 3))
        for make in OF_MAPS
    ],
    (TypeError, "LayerNorm expects input in"): [
        called(partial(norms.LayerNorm, 4), 3, 4, dtype=dtype)
        for dtype in (torch.int64, torch.bool, torch.complex64, torch.float8_e5m2)
    ],
    (ValueError, "normalized_shape"): [partial(norms.LayerNorm, shape) for shape in ((), [], -1, (3, -4))],
    (TypeError, "integer"): [partial(norms.RMSNorm, (4.0,))],
    (ValueError, "eps"): [partial(norms.RMSNorm, 4, eps) for eps in (float("nan"), float("inf"))],
    (ValueError, "impl=quick"): [changed(impl="quick")],
    (ValueError, "shape ends with"): [
        called(partial(norms.RMSNorm, 4), 2, 3),
        called(partial(norms.LayerNorm, (2, 4)), 4),
    ],
    (ValueError, "p must lie"): [changed(p=1.5)],
    (AttributeError, "axes"): [changed(axes=(1, 2, 3))],
    (ValueError, "shape"): [
        called(with_parameter(name, normalized, *shape), 2, *normalized)
        for name in ("weight", "bias")
        for normalized, shape in SHAPES_OF_PARAMETERS
    ],
    (ValueError, "slope"): [
        called(partial(layer, 4), 2, 4, slope=slope)
        for layer in (norms.RMSNorm, norms.DynamicTanh)
        for slope in (0.0, 1.5)
    ],
}
MISTAKES_OF_OTHERS: dict[tuple[type[Exception], str], list[Callable[..., object]]] = {  # of layers without kernels
    (ValueError, "feature maps"): [called(partial(norms.BatchNorm, 4, maps=True), 2, 4)],
    (ValueError, "shape ends with"): [called(partial(norms.BatchNorm, 4), 8, 1)],
    (ValueError, "batch"): [called(partial(norms.BatchNorm, 4), 4)],
    (TypeError, "MeanOnlyBatchNorm"): [called(partial(norms.MeanOnlyBatchNorm, 4), 3, 4, dtype=torch.int32)],
    (ValueError, "eps"): [partial(norms.BatchNorm, 4, -1.0), partial(norms.WeightNorm, 4, -1.0)],
}


@pytest.mark.parametrize(("error", "name"), MISTAKES)
def test_mistakes_are_errors_that_name_what_is_wrong(error: type[Exception], name: str, impl: str) -> None:
    for call in MISTAKES[error, name]:
        with pytest.raises(error, match=name):
            call(impl=impl)


@pytest.mark.parametrize(("error", "name"), MISTAKES_OF_OTHERS)
def test_mistakes_with_layers_without_kernels(error: type[Exception], name: str) -> None:
    for call in MISTAKES_OF_OTHERS[error, name]:
        with pytest.raises(error, match=name):
            call()


def test_sizes_may_be_integers_of_numpy() -> None:
    for shape in (np.int64(4), [np.int32(3), np.int64(4)], torch.Size([4]), np.array([3, 4])):
        layer = norms.RMSNorm(shape)
        assert layer.weight.shape == tuple(layer.normalized_shape)
        assert all(type(size) is int for size in layer.normalized_shape)
    assert norms.RMSNorm((2, 0)).weight.shape == (2, 0)


@pytest.mark.parametrize("p", [0.3, 1.0])
@pytest.mark.parametrize("axes", [(2, 3), (1, 2, 3)])
@pytest.mark.parametrize("shape", [(2, 4, 0, 3), (0, 4, 3, 3)])
def test_maps_without_positions_or_examples(shape: tuple[int, ...], axes: tuple[int, ...], p: float, impl: str) -> None:
    assert norms.RMSNorm(4, axes=axes, p=p, impl=impl)(torch.ones(shape)).shape == shape


# --- the place of torch's own layers: state dicts


@pytest.mark.parametrize(("wrap", "prefix"), [(lambda layer: layer, ""), (nn.Sequential, "0.")], ids=["layer", "model"])
def test_a_bias_is_neither_dropped_nor_made_up(wrap: Callable[..., nn.Module], prefix: str) -> None:
    rms, ln = (wrap(layer(N)) for layer in (norms.RMSNorm, norms.LayerNorm))
    named = rf'Unexpected key.*"{prefix}bias"'
    with pytest.raises(RuntimeError, match=named), pytest.warns(match=f"^{prefix}bias: RMSNorm: .*bias=True"):
        rms.load_state_dict(wrap(nn.LayerNorm(N)).state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key.*bias"), pytest.warns(match="bias=False"):
        ln.load_state_dict(wrap(nn.RMSNorm(N)).state_dict())
    gain = torch.arange(N).float()
    for layer in (rms, ln):
        key = next(iter(layer.state_dict()))
        layer.load_state_dict({key: gain}, strict=False)
        assert torch.equal(layer.state_dict()[key], gain)
    wrap(norms.RMSNorm(N, bias=True)).load_state_dict(wrap(nn.LayerNorm(N)).state_dict())
    wrap(norms.LayerNorm(N, bias=False)).load_state_dict(wrap(nn.RMSNorm(N)).state_dict())


@pytest.mark.parametrize(("weight", "bias"), [("scale", "offset"), ("gamma", "beta")])
def test_other_names_of_gain_and_bias_are_known(weight: str, bias: str) -> None:
    gain, shift = draw(2, N).float()
    model = nn.Sequential(norms.RMSNorm(N, bias=True), norms.RMSNorm(N))
    state = {f"0.{weight}": gain, f"0.{bias}": shift, "1.g": gain}
    model.load_state_dict(state)
    assert torch.equal(torch.stack([*model.parameters()]), torch.stack([gain, shift, gain]))
    assert list(state) == [f"0.{weight}", f"0.{bias}", "1.g"]
    derf = norms.DynamicErf(N, bias=False)  # which has an offset of its own
    derf.load_state_dict(derf.state_dict())


def test_a_parametrised_bias_is_no_missing_bias() -> None:
    layers = [norms.LayerNorm(N) for _ in range(2)]
    for layer in layers:
        nn.utils.parametrize.register_parametrization(layer, "bias", nn.Identity())
    with torch.no_grad():
        layers[1].parametrizations.bias.original.fill_(3.0)
    layers[0].load_state_dict(layers[1].state_dict())
    assert torch.equal(layers[0].bias, torch.full((N,), 3.0))


# --- the place of torch's own layers: arguments


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
    x = draw(64, N)
    results = []
    for layer in (ours(N, eps, impl=impl, dtype=x.dtype), torchs(N, eps, dtype=x.dtype)):
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        results.append((y, *torch.autograd.grad(y.nan_to_num().sum(), leaf)))
    torch.testing.assert_close(results[0], results[1], equal_nan=True)


@pytest.mark.parametrize("layer", [norms.LayerNorm, norms.RMSNorm])
def test_a_layer_made_on_meta_has_its_initial_values_after_reset_parameters(layer: type[nn.Module]) -> None:
    made = layer(4, device="meta").to_empty(device="cpu")
    made.reset_parameters()
    torch.testing.assert_close(made.state_dict(), layer(4).state_dict())
