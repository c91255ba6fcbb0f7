"""ConvPool-CNN-C: the paper's sizes, its layers in their order, and its initial values."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import pytest
import torch
from helpers.sites import NORMS, RecordedNoise, draw
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp import config
from rmsexp.models import init
from rmsexp.models.convpool import ConvPool
from rmsexp.norms import Linear
from rmsexp.train.randomness import StreamNoise, stream

SITES = [*(f"conv{number}" for number in range(1, 10)), "dense"]
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
    return site.norm.weight if site.reparametrisation is None else site.reparametrisation.gain


def shift_of(site: Linear) -> Tensor:
    return site.norm.bias if site.norm.bias is not None else site.bias


@pytest.mark.parametrize(
    ("norm", "others", "fixed"), [("ln", 2900, 0), ("mean_only_bn", 2900, 0), ("none", 2900, 1450)]
)
def test_parameters_as_in_the_paper(norm: str, others: int, fixed: int) -> None:
    model = build(norm)
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, Linear))
    assert weights == 1_405_344
    assert sum(p.numel() for p in model.parameters()) - weights == others
    fixed_names = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert sum(model.get_parameter(name).numel() for name in fixed_names) == fixed
    assert all(name.endswith("gain") for name in fixed_names)


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
    model, recorder = initialised("rms"), RecordedNoise()
    x = images(2)
    assert torch.equal(model(x, recorder), model(x))
    assert recorder.calls == [
        ("gaussian", (2, 3, 32, 32), 0.15),
        ("dropout", (2, 96, 16, 16), 0.5),
        ("dropout", (2, 192, 8, 8), 0.5),
    ]


@pytest.mark.parametrize("initialiser", [init.glorot_uniform, init.normal(0.05)], ids=["glorot", "normal"])
def test_initial_weights(initialiser: init.Initialiser) -> None:
    """Glorot's weights are uniform, the others normal: their largest value would be 0.087 if they were uniform."""
    model = initialised("rms", initialiser)
    for name, bound in zip(SITES, GLOROT_BOUNDS, strict=True):
        weight = model.get_submodule(name).weight
        std = bound / math.sqrt(3) if initialiser is init.glorot_uniform else 0.05
        assert weight.std().item() == pytest.approx(std, rel=0.05)
        assert weight.mean().abs() < 4 * std / math.sqrt(weight.numel())
        if initialiser is init.glorot_uniform:
            assert weight.abs().max().item() == pytest.approx(bound, rel=0.01)
        else:
            assert weight.abs().max() > 0.05 * 3


def test_each_weight_has_the_stream_of_its_name() -> None:
    model = initialised("rms", width=0.1)
    values = [model.get_submodule(name).weight.flatten()[:50] for name in SITES]
    assert len({tuple((value / value.abs().max()).tolist()) for value in values}) == len(SITES)
    alone = torch.empty_like(model.conv5.weight)
    init.glorot_uniform(alone, stream(0, "init", "conv5.weight"))
    assert torch.equal(alone, model.conv5.weight)


@lru_cache
def calibrated(norm: str) -> ConvPool:
    """Return a model initialised from 16 images."""
    model = initialised(norm, init.normal(0.05), width=0.1, data_init=True)
    x = images(16)
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


def test_sites_without_data_init_keep_their_values() -> None:
    model = initialised("wn", width=0.1, data_init=False)
    before = {name: p.clone() for name, p in model.named_parameters()}
    init.initialise_from_data(model, lambda: model(images(2)))
    assert all(torch.equal(model.get_parameter(name), value) for name, value in before.items())


def test_initialising_from_data_needs_a_gain_and_a_bias_after_the_norm() -> None:
    """A bias before the norm is no substitute: after the norm it would not be a shift."""
    model = initialised("nonparametric_ln", width=0.1, data_init=True)
    with pytest.raises(ValueError, match=r"^conv1: .* gain"):
        init.initialise_from_data(model, lambda: model(images(2)))
    assert not any(module._forward_hooks for module in model.modules())
    site = NORMS["rms"].linear("a", 3, 4, data_init=True)
    init.initialise(site, init.normal(1.0), lambda name: stream(0, name))
    with pytest.raises(ValueError, match=r"^a: .* bias"):
        init.initialise_from_data(site, lambda: site(draw(8, 3).float()))


@pytest.mark.parametrize("value", [0.0, 0.3, float("nan")])
@pytest.mark.parametrize("norm", ["wn", "rms"])
def test_initialising_from_data_refuses_units_without_a_standard_deviation(norm: str, value: float) -> None:
    """A unit whose outputs are equal, exactly or up to rounding, would have an infinite or huge gain."""
    site = NORMS[norm].linear("a", 3, 4, shift=True, data_init=True)
    init.initialise(site, init.normal(1.0), lambda name: stream(0, name))
    x = torch.full((8, 3), value)
    before = {name: parameter.clone() for name, parameter in site.named_parameters()}
    with pytest.raises(ValueError, match=r"^a cannot .* constant or not finite"):
        init.initialise_from_data(site, lambda: site(x))
    assert all(torch.equal(site.get_parameter(name), value) for name, value in before.items())
    assert not site._forward_hooks
