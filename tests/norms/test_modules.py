"""Norm layers as modules of torch: representation, devices and dtypes, options that are changed, refused input."""

from __future__ import annotations

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
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from rmsexp import norms

LAYERS: dict[str, Callable[..., norms.Normaliser]] = {
    "rms": partial(norms.RMSNorm, 4, bias=True),
    "rms, no gain": partial(norms.RMSNorm, (3, 4), 1e-3, elementwise_affine=False),
    "prms": partial(norms.RMSNorm, 4, 0.0, p=0.3, eps_inside=False, k_rounding="floor"),
    "rms, weight offset": partial(norms.RMSNorm, 4, weight_offset=True),
    "rms, maps": partial(norms.RMSNorm, 4, p=0.5, axes=(2, 3)),
    "l2": partial(norms.L2Norm, 4, axes=[1, 2, 3]),
    "dyt": partial(norms.DynamicTanh, 4, 0.2, bias=False),
    "derf, maps": partial(norms.DynamicErf, 4, maps=True),
    "ln": partial(norms.LayerNorm, [2, 4]),
    "ln, gain": partial(norms.LayerNorm, 4, 1e-3, bias=False),
    "ln, no gain": partial(norms.LayerNorm, 4, elementwise_affine=False),
}
BATCH_NORMS: dict[str, Callable[[], norms.Normaliser]] = {
    "bn": partial(norms.BatchNorm, 4, 1e-3, initial_gain=0.1),
    "bn, maps": partial(norms.BatchNorm, 4, shift=False, maps=True, options=norms.BN(name="bn", momentum=0.5)),
    "mean_only_bn": partial(norms.MeanOnlyBatchNorm, 4),
}
every = pytest.mark.parametrize("name", LAYERS)
NORMALISERS: dict[str, Callable[[], norms.Normaliser]] = {**LAYERS, **BATCH_NORMS}


def input_of(layer: norms.Normaliser) -> Tensor:
    return draw(3, 4, 2, 5) if layer.maps else draw(3, *layer.shape)


def state(layer: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in layer.state_dict().items()}


# --- conventions of torch.nn


@pytest.mark.parametrize("name", NORMALISERS)
def test_the_representation_makes_an_equal_layer(name: str) -> None:
    layer = NORMALISERS[name]()
    text = repr(layer)
    again = eval(text, vars(norms))
    assert repr(again) == text
    assert type(again) is type(layer)
    x = input_of(layer)
    assert torch.equal(again.double()(x), layer.double()(x))


def test_the_representation_lists_every_option(impl: str) -> None:
    layer = norms.RMSNorm(
        4, 1e-3, False, bias=True, p=0.5, eps_inside=False, k_rounding="floor", impl=impl, axes=(2, 3)
    )
    assert repr(layer) == (
        "RMSNorm((4,), eps=0.001, elementwise_affine=False, bias=True, p=0.5, eps_inside=False, k_rounding='floor', "
        f"weight_offset=False, impl='{impl}', axes=(2, 3))"
    )


@pytest.mark.parametrize("name", NORMALISERS)
def test_reset_parameters_restores_initial_values_after_to_empty(name: str) -> None:
    layer = NORMALISERS[name]()
    initial = state(layer)
    x = input_of(layer).float()
    layer(x)  # changes running statistics
    layer.to("meta")
    assert layer(x.to("meta")).shape == x.shape
    layer.to_empty(device="cpu")
    for tensor in (*layer.parameters(), *layer.buffers()):
        tensor.data.fill_(7)
    layer.reset_parameters()
    torch.testing.assert_close(state(layer), initial)


@pytest.mark.parametrize("norm", [norms.WN(name="wn"), norms.NoNorm(name="none"), norms.RMS(name="rms")])
def test_a_model_made_on_meta_has_the_initial_values_after_reset_parameters(norm: norms.Norm) -> None:
    """Weights are NaN then, so that rmsexp.models.init.initialise draws them."""
    expected = norm.linear("a", 3, 4, shift=True, data_init=True)
    with torch.device("meta"):
        site = norm.linear("a", 3, 4, shift=True, data_init=True)
    site.to_empty(device="cpu")
    for module in site.modules():
        module.reset_parameters()
    torch.testing.assert_close(state(site), state(expected), equal_nan=True)


@every
def test_device_and_dtype_are_those_of_the_parameters_from_the_start(name: str, impl: str) -> None:
    with FakeTensorMode():
        layer = LAYERS[name](impl=impl, device="cpu", dtype=torch.bfloat16)
        for parameter in layer.parameters():
            assert isinstance(parameter, FakeTensor)
            assert parameter.dtype is torch.bfloat16
        x = torch.ones(3, 4, 2, 5) if layer.maps else torch.ones(3, *layer.shape)
        assert layer(x).shape == x.shape
    meta = LAYERS[name](impl=impl, device="meta", dtype=torch.float64)
    assert {(parameter.device.type, parameter.dtype) for parameter in meta.parameters()} <= {("meta", torch.float64)}


@every
def test_copies_compute_the_same(name: str, impl: str) -> None:
    layer = LAYERS[name](impl=impl).double()
    x = input_of(layer)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(x), layer(x))


def test_elementwise_affine_says_whether_there_is_a_gain() -> None:
    for name, make in LAYERS.items():
        assert make().elementwise_affine == ("no gain" not in name)


def test_the_default_eps_is_that_of_torch() -> None:
    """Layers made without eps equal torch's where eps matters: at small input, in single and double precision."""
    for dtype in (torch.float32, torch.float64):
        x = 1e-4 * draw(3, 4).to(dtype)
        for ours, reference in ((norms.RMSNorm(4), nn.RMSNorm(4)), (norms.LayerNorm(4), nn.LayerNorm(4))):
            torch.testing.assert_close(ours.to(dtype)(x), reference.to(dtype)(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_form_for_recurrences_has_the_eps_of_the_layer(dtype: torch.dtype) -> None:
    assert norms.RMSNorm(4, None).form(4, dtype).eps == torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    assert norms.RMSNorm(4, 0.0).form(4, dtype).eps == 0


# --- subclasses


@pytest.mark.parametrize("base", [norms.RMSNorm, norms.L2Norm, norms.LayerNorm])
def test_the_formula_of_a_subclass_is_used(base: Any, impl: str) -> None:
    class Doubled(base):
        def standardise(self, x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
            value, scale = super().standardise(x, axes, eps)
            return value, 2 * scale

    class Renamed(base):
        pass

    class WithKernel(Doubled):
        kind = base.kind

        def standardise(self, x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
            return super().standardise(x, axes, eps)

    layer, x = Doubled(4, impl=impl).double(), draw(3, 4)
    torch.testing.assert_close(layer(x), 2 * base(4).double()(x))
    assert [subclass.kind for subclass in (Doubled, Renamed, WithKernel)] == [None, base.kind, base.kind]
    with pytest.raises(NotImplementedError, match="Doubled has no fused kernel"):
        layer.form(4)


@pytest.mark.parametrize("method", ["forward", "divisor"])
def test_a_subclass_with_another_method_of_the_formula_has_no_kernel(method: str, impl: str) -> None:

    def doubled(self: norms.RMSNorm, *arguments: Any, **options: Any) -> Any:
        return 2 * getattr(norms.RMSNorm, method)(self, *arguments, **options)

    changed: Any = type("Changed", (norms.RMSNorm,), {method: doubled})
    layer, x = changed(4, 0.0, impl=impl).double(), draw(3, 4)
    factor = 2.0 if method == "forward" else 2**0.5
    torch.testing.assert_close(layer(x), factor * norms.RMSNorm(4, 0.0).double()(x))
    torch.testing.assert_close(layer.add(x, x)[1], layer(2 * x))
    assert changed.kind is None


def test_a_mixin_with_a_formula_takes_the_kernel_away(impl: str) -> None:
    class Doubling:
        def standardise(self, x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
            value, scale = norms.RMSNorm.standardise(self, x, axes, eps)  # type: ignore[arg-type]
            return value, 2 * scale

    class Mixed(Doubling, norms.RMSNorm):
        pass

    x = draw(3, 4)
    torch.testing.assert_close(Mixed(4, impl=impl).double()(x), 2 * norms.RMSNorm(4).double()(x))
    assert Mixed.kind is None


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
    with pytest.raises(ValueError, match=r"Doubled has no fused kernel; use norm\.impl=eager"):
        fused.check_effect(fused.linear("layer", 3, 4))
    for norm in (norms.RMS(name="rms", impl="fused"), norms.NoNorm(name="none", impl="fused")):
        norm.check_effect(norm.linear("layer", 3, 4))


@pytest.mark.parametrize("make", [partial(norms.RMSNorm, 4), partial(norms.DynamicTanh, 4)])
def test_a_slope_out_of_range_is_refused(make: Callable[..., norms.Normaliser], impl: str) -> None:
    for slope in (0.0, 1.5):
        with pytest.raises(ValueError, match=r"slope must lie in \(0, 1\]"):
            make(impl=impl)(torch.ones(2, 4), slope=slope)


# --- options changed later


@pytest.mark.slow
@pytest.mark.usefixtures("fused_kernels")
@pytest.mark.parametrize("axes", [None, (2, 3)])
def test_a_changed_impl_takes_effect(axes: tuple[int, ...] | None) -> None:
    layer = norms.RMSNorm(4, axes=axes)
    x = input_of(layer).float().requires_grad_()
    for impl, fused in (("fused", True), ("eager", False)):
        layer.impl = impl
        assert ("Normalise" in layer(x).grad_fn.name()) == fused


def test_a_changed_p_takes_effect(impl: str) -> None:
    layer, x = norms.RMSNorm(10, impl=impl).double(), draw(3, 10)
    layer.p = 0.5
    torch.testing.assert_close(layer(x), norms.RMSNorm(10, p=0.5).double()(x))


# --- refused arguments and input


def changed(layer: nn.Module, **attributes: Any) -> None:
    for name, value in attributes.items():
        setattr(layer, name, value)


def maps(shape: tuple[int, ...], axes: tuple[int, ...] = (2, 3), **options: Any) -> Tensor:
    return norms.RMSNorm(4, axes=axes, **options)(torch.ones(shape))


MISTAKES: dict[str, tuple[Callable[[str], object], type[Exception], str]] = {
    **{
        f"axes {axes}": (
            lambda impl, axes=axes: norms.RMSNorm(4, axes=axes, impl=impl),
            ValueError,
            r"axes must be \(2, 3\) .* or \(1, 2, 3\)",
        )
        for axes in ((1, 2), (0,), (3, 2), (-2, -1), (), (2, 3, 4))
    },
    "axes and two sizes": (
        lambda impl: norms.RMSNorm((4, 4), axes=(2, 3), impl=impl),
        ValueError,
        "number of channels",
    ),
    **{
        f"maps {shape} {axes}": (
            lambda impl, shape=shape, axes=axes: maps(shape, axes, impl=impl, elementwise_affine=False),
            ValueError,
            r"RMSNorm expects feature maps \(batch, 4, height, width\), got shape",
        )
        for shape in ((4, 4), (4, 4, 4), (2, 4, 4, 4, 4), (2, 5, 3, 3), (2, 1, 3, 3))
        for axes in ((2, 3), (1, 2, 3))
    },
    "maps of batch norm": (
        lambda impl: norms.BatchNorm(4, maps=True)(torch.ones(2, 4)),  # noqa: ARG005
        ValueError,
        "BatchNorm expects feature maps",
    ),
    "features of batch norm": (
        lambda impl: norms.BatchNorm(4)(torch.ones(8, 1)),  # noqa: ARG005
        ValueError,
        r"expected input whose shape ends with \(4,\)",
    ),
    "batch norm without a batch": (
        lambda impl: norms.BatchNorm(4)(torch.ones(4)),  # noqa: ARG005
        ValueError,
        "BatchNorm expects a batch",
    ),
    **{
        f"{dtype}": (
            lambda impl, dtype=dtype: norms.LayerNorm(4, impl=impl)(torch.ones(3, 4, dtype=dtype)),
            TypeError,
            f"LayerNorm expects input in torch.float32, .*; got {dtype}",
        )
        for dtype in (torch.int64, torch.bool, torch.complex64, torch.float8_e5m2)
    },
    "integers to batch norm": (
        lambda impl: norms.MeanOnlyBatchNorm(4)(torch.ones(3, 4, dtype=torch.int32)),  # noqa: ARG005
        TypeError,
        "MeanOnlyBatchNorm expects input in",
    ),
    **{
        f"normalized_shape {shape}": (
            lambda impl, shape=shape: norms.LayerNorm(shape, impl=impl),
            ValueError,
            "normalized_shape must be a size or a non-empty sequence of sizes",
        )
        for shape in ((), [], -1, (3, -4))
    },
    "normalized_shape 4.0": (lambda impl: norms.RMSNorm((4.0,), impl=impl), TypeError, "integer"),
    **{
        f"eps {eps}": (
            lambda impl, eps=eps: norms.RMSNorm(4, eps, impl=impl),
            ValueError,
            "eps must be a finite number",
        )
        for eps in (float("nan"), float("inf"))
    },
    "eps of batch norm": (lambda impl: norms.BatchNorm(4, -1.0), ValueError, "eps must be"),  # noqa: ARG005
    "eps of weight norm": (lambda impl: norms.WeightNorm(4, -1.0), ValueError, "eps must be"),  # noqa: ARG005
    "another impl": (lambda impl: changed(norms.RMSNorm(4, impl=impl), impl="quick"), ValueError, "impl=quick"),
    "another p": (lambda impl: changed(norms.RMSNorm(4, impl=impl), p=1.5), ValueError, r"p must lie in \(0, 1\]"),
    "other axes": (
        lambda impl: changed(norms.RMSNorm(4, axes=(2, 3), impl=impl), axes=(1, 2, 3)),
        AttributeError,
        "axes",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_errors_that_say_what_is_valid(mistake: str, impl: str) -> None:
    call, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message) as raised:
        call(impl)
    assert len(str(raised.value)) <= 300


def test_sizes_may_be_integers_of_numpy() -> None:
    for shape in (np.int64(4), [np.int32(3), np.int64(4)], torch.Size([4]), np.array([3, 4])):
        layer = norms.RMSNorm(shape)
        assert layer.weight.shape == tuple(layer.normalized_shape)
        assert all(type(size) is int for size in layer.normalized_shape)


@pytest.mark.parametrize("p", [0.3, 1.0])
@pytest.mark.parametrize("axes", [(2, 3), (1, 2, 3)])
@pytest.mark.parametrize("shape", [(2, 4, 0, 3), (2, 4, 3, 0), (0, 4, 3, 3)])
def test_maps_without_positions_or_examples(shape: tuple[int, ...], axes: tuple[int, ...], p: float, impl: str) -> None:
    assert maps(shape, axes, p=p, impl=impl).shape == shape
