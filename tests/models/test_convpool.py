"""ConvPool-CNN-C: the paper's sizes, its layers in their order, and its initial values."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import pytest
import torch
from helpers.sites import NORMS, draw
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp import config
from rmsexp.models import init
from rmsexp.models.convpool import ConvPool
from rmsexp.norms import Linear
from rmsexp.train.randomness import StreamNoise, stream

SITES = [*(f"conv{number}" for number in range(1, 10)), "dense"]
CHANNELS = [3, 96, 96, 96, 192, 192, 192, 192, 192, 192, 10]
GLOROT_BOUNDS = [0.0821, 0.0589, 0.0589, 0.0481, 0.0417, 0.0417, 0.0417, 0.125, 0.125, 0.1723]
DATA_INIT = ["none", "wn", "mean_only_bn"]  # the norms with model.data_init=true in task=cifar10


def build(norm: str, **options: object) -> ConvPool:
    """Return the model of task=cifar10 scale=paper, changed by ``options``, before its weights are drawn."""
    job = config.job(["scale=paper", f"norm={norm}"])
    return ConvPool(job.norm, **{"data_init": job.config.model.data_init} | options)


def initialised(norm: str, initialiser: init.Initialiser = init.glorot_uniform, **options: object) -> ConvPool:
    model = build(norm, **options)
    init.initialise(model, initialiser, lambda name: stream(0, "init", name))
    return model


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=stream(0, "images"))


@contextmanager
def outputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Yield a dict into which, within the context, each site's output is put, by name and in the order of the calls."""
    results: dict[str, Tensor] = {}

    def keep(site: Linear, _: object, output: Tensor) -> None:
        results[site.site.name] = output.detach()

    hooks = [module.register_forward_hook(keep) for module in model.modules() if isinstance(module, Linear)]
    yield results
    for hook in hooks:
        hook.remove()


def gain_of(site: Linear) -> Tensor:
    gain = site.norm.weight if site.reparametrisation is None else site.reparametrisation.gain
    assert isinstance(gain, Tensor)
    return gain


def shift_of(site: Linear) -> Tensor:
    shift = site.norm.bias if site.norm.bias is not None else site.bias
    assert isinstance(shift, Tensor)
    return shift


@pytest.mark.parametrize(
    ("norm", "others", "fixed"),
    [
        *((norm, 2900, 0) for norm in ("ln", "rms", "prms", "l2", "bn", "wn", "mean_only_bn")),
        ("none", 2900, 1450),
        ("nonparametric_ln", 0, 0),
    ],
)
def test_parameters_as_in_the_paper(norm: str, others: int, fixed: int) -> None:
    model = build(norm)
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, Linear))
    assert weights == 1_405_344
    assert sum(p.numel() for p in model.parameters()) - weights == others
    fixed_names = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert sum(model.get_parameter(name).numel() for name in fixed_names) == fixed
    assert all(name.endswith("gain") for name in fixed_names)


@pytest.mark.parametrize("norm", ["none", "ln"])
def test_shapes(norm: str) -> None:
    model = initialised(norm)
    with outputs(model) as seen, torch.no_grad():
        logits = model(images(2))
    assert list(seen) == SITES
    sides = [32, 32, 32, 16, 16, 16, 6, 6, 6]  # pooling: 32 to 16, 16 to 8; conv7 without padding: 8 to 6
    expected = [(2, channels, side, side) for channels, side in zip(CHANNELS[1:], sides, strict=False)]
    assert [tuple(output.shape) for output in seen.values()] == [*expected, (2, 10)]
    assert logits.shape == (2, 10)
    kernels = [model.get_submodule(name).weight.shape[2:] for name in SITES]
    assert kernels == [(3, 3)] * 7 + [(1, 1)] * 2 + [()]


def test_each_layer_by_hand() -> None:
    """Without norm, logits equal those of convolutions, leaky ReLUs of slope 0.1, max pooling, mean and dense layer."""
    model = initialised("none", width=0.1, data_init=False)
    for name in SITES:
        torch.nn.init.normal_(shift_of(model.get_submodule(name)), generator=stream(0, name))
    x = inputs = images(3)
    for number in range(1, 10):
        site = model.get_submodule(f"conv{number}")
        y = F.conv2d(x, site.weight, site.bias, padding=1 if number <= 6 else 0)
        x = torch.where(y > 0, y, 0.1 * y)
        if number in (3, 6):
            x = x.unflatten(2, (-1, 2)).unflatten(4, (-1, 2)).amax((3, 5))
    expected = x.flatten(2).mean(2) @ model.dense.weight.T + model.dense.bias
    torch.testing.assert_close(model(inputs), expected)


def test_noise_on_the_input_and_after_each_pooling_only() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.calls: list[tuple[object, ...]] = []

        def gaussian(self, x: Tensor, std: float) -> Tensor:
            self.calls.append(("gaussian", tuple(x.shape), std))
            return x

        def dropout(self, x: Tensor, p: float) -> Tensor:
            self.calls.append(("dropout", tuple(x.shape), p))
            return x

    model, recorder = initialised("rms"), Recorder()
    x = images(2)
    assert torch.equal(model(x, recorder), model(x))
    assert recorder.calls == [
        ("gaussian", (2, 3, 32, 32), 0.15),
        ("dropout", (2, 96, 16, 16), 0.5),
        ("dropout", (2, 192, 8, 8), 0.5),
    ]


@pytest.mark.parametrize("norm", ["rms", "bn"])
def test_evaluation_draws_nothing(norm: str) -> None:
    model, x = initialised(norm, width=0.1), images(4)
    noisy = model(x, StreamNoise(0, "noise"))
    model.eval()
    state = torch.get_rng_state()
    assert torch.equal(model(x), model(x))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.allclose(noisy, model(x))


@pytest.mark.parametrize(("name", "bound"), [*zip(SITES, GLOROT_BOUNDS, strict=True)])
def test_glorot_bounds(name: str, bound: float) -> None:
    weight = initialised("rms").get_submodule(name).weight
    assert weight.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
    assert weight.mean().abs() < 4 * bound / math.sqrt(3 * weight.numel())


@pytest.mark.parametrize("name", SITES)
def test_normal_005(name: str) -> None:
    weight = initialised("wn", init.normal(0.05)).get_submodule(name).weight
    assert weight.std().item() == pytest.approx(0.05, rel=0.05)
    assert weight.mean().abs() < 4 * 0.05 / math.sqrt(weight.numel())
    assert weight.abs().max() > 0.05 * 3  # the largest value of a uniform distribution would be 0.087


@pytest.mark.parametrize("norm", ["rms", "wn", "none"])
def test_only_weights_are_nan_before_they_are_drawn(norm: str) -> None:
    model = build(norm)
    undrawn = {name for name, p in model.named_parameters() if p.isnan().any()}
    assert undrawn == {f"{name}.weight" for name in SITES}
    before = {name: p.clone() for name, p in model.named_parameters() if name not in undrawn}
    init.initialise(model, init.glorot_uniform, lambda name: stream(0, name))
    assert not any(p.isnan().any() for p in model.parameters())
    assert all(torch.equal(model.get_parameter(name), value) for name, value in before.items())


def test_a_weight_that_is_not_drawn_makes_the_result_nan() -> None:
    model = build("rms", width=0.05)
    for name in SITES:
        if name != "conv5":
            init.initialise(model.get_submodule(name), init.glorot_uniform, lambda name: stream(0, name))
    assert model.conv5.weight.isnan().all()
    assert model(images(1)).isnan().all()


def test_each_weight_has_the_stream_of_its_name() -> None:
    model = initialised("rms", width=0.1)
    values = [model.get_submodule(name).weight.flatten()[:50] for name in SITES]
    assert len({tuple((value / value.abs().max()).tolist()) for value in values}) == len(SITES)
    alone = torch.empty_like(model.conv5.weight)
    init.glorot_uniform(alone, stream(0, "init", "conv5.weight"))
    assert torch.equal(alone, model.conv5.weight)


@lru_cache
def calibrated(norm: str, count: int = 16, copy_number: int = 0) -> ConvPool:  # noqa: ARG001
    """Return a model initialised from ``count`` images. A new ``copy_number`` makes a new model, not from the cache."""
    model = initialised(norm, init.normal(0.05), width=0.1, data_init=True)
    x = images(count)
    init.initialise_from_data(model, lambda: model(x, StreamNoise(0, "calibration")))
    return model


@pytest.mark.parametrize("norm", DATA_INIT)
def test_initialised_from_data_each_unit_has_mean_0_and_deviation_1(norm: str) -> None:
    model = copy.deepcopy(calibrated(norm))
    with outputs(model) as seen, torch.no_grad():
        model(images(16), StreamNoise(0, "calibration"))
    assert list(seen) == SITES
    for name, output in seen.items():
        units = output.transpose(0, 1).flatten(1).double()
        torch.testing.assert_close(units.mean(1), torch.zeros(len(units)).double(), atol=2e-4, rtol=0, msg=name)
        torch.testing.assert_close(units.std(1, correction=0), torch.ones(len(units)).double(), atol=2e-4, rtol=0)


@pytest.mark.parametrize("norm", DATA_INIT)
def test_what_initialising_from_data_changes(norm: str) -> None:
    before, after = initialised(norm, init.normal(0.05), width=0.1, data_init=True), calibrated(norm)
    assert dict(before.named_buffers()).keys() == dict(after.named_buffers()).keys()
    for name, buffer in before.named_buffers():
        assert torch.equal(buffer, after.get_buffer(name))
    for name in SITES:
        old, new = before.get_submodule(name), after.get_submodule(name)
        assert torch.equal(old.weight, new.weight)
        assert (gain_of(old) == 1).all()
        assert not torch.isclose(gain_of(new), torch.ones(())).any()
        assert (shift_of(old) == 0).all()
        if norm == "mean_only_bn":  # the norm has already subtracted the batch's mean
            assert shift_of(new).abs().max() < 1e-5
        else:
            assert shift_of(new).abs().max() > 1e-3
    assert not any(module._forward_hooks for module in after.modules())


def test_mean_only_bn_has_the_gains_of_weight_norm() -> None:
    """Centring does not change the standard deviation, so initialisation from data gives both norms the same gains."""
    plain, centred = calibrated("wn"), calibrated("mean_only_bn")
    for name in SITES:
        torch.testing.assert_close(gain_of(plain.get_submodule(name)), gain_of(centred.get_submodule(name)))


@pytest.mark.parametrize("norm", DATA_INIT)
def test_initialising_from_data_is_deterministic(norm: str) -> None:
    first, second, other = calibrated(norm), calibrated(norm, copy_number=1), calibrated(norm, count=8)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_sites_without_data_init_keep_their_values() -> None:
    model = initialised("wn", width=0.1, data_init=False)
    before = {name: p.clone() for name, p in model.named_parameters()}
    init.initialise_from_data(model, lambda: model(images(2)))
    assert all(torch.equal(model.get_parameter(name), value) for name, value in before.items())


def test_initialising_from_data_needs_a_gain() -> None:
    model = initialised("nonparametric_ln", width=0.1, data_init=True)
    with pytest.raises(ValueError, match="conv1: initialising from data needs a norm with a gain"):
        init.initialise_from_data(model, lambda: model(images(2)))
    assert not any(module._forward_hooks for module in model.modules())


def test_initialising_from_data_needs_a_bias_after_the_norm() -> None:
    """A bias before the norm is no substitute: after the norm it would not be a shift."""
    site = NORMS["rms"].linear("a", 3, 4, data_init=True)
    init.initialise(site, init.normal(1.0), lambda name: stream(0, name))
    with pytest.raises(ValueError, match="a: initialising from data needs a bias after the norm"):
        init.initialise_from_data(site, lambda: site(draw(8, 3).float()))


@pytest.mark.parametrize("value", [0.0, 0.3, float("nan")])
@pytest.mark.parametrize("norm", ["wn", "rms"])
def test_initialising_from_data_refuses_units_without_a_standard_deviation(norm: str, value: float) -> None:
    """A unit whose outputs are equal, exactly or up to rounding, would have an infinite or huge gain."""
    site = NORMS[norm].linear("a", 3, 4, shift=True, data_init=True)
    init.initialise(site, init.normal(1.0), lambda name: stream(0, name))
    x = torch.full((8, 3), value)
    before = {name: parameter.clone() for name, parameter in site.named_parameters()}
    with pytest.raises(ValueError, match="a: 4 of 4 units cannot be initialised from data, because their standard dev"):
        init.initialise_from_data(site, lambda: site(x))
    assert all(torch.equal(site.get_parameter(name), value) for name, value in before.items())
    assert not site._forward_hooks
