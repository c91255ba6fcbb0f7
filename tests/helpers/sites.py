"""Every norm, the formula of each without gain and shift, and helpers for modules that contain normalised layers."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from helpers.cases import some
from rmsexp import norms

NORMS: dict[str, norms.Norm] = {
    "none": norms.NoNorm(name="none"),
    "bn": norms.BN(name="bn", min_examples=4),
    "wn": norms.WN(name="wn"),
    "mean_only_bn": norms.MeanOnlyBN(name="mean_only_bn", min_examples=4),
    "ln": norms.LN(name="ln"),
    "nonparametric_ln": norms.NonparametricLN(name="nonparametric_ln"),
    "rms": norms.RMS(name="rms"),
    "rms+gain=false": norms.RMS(name="rms", gain=False),
    "prms": norms.PRMS(name="prms", p=0.25),
    "l2": norms.L2(name="l2"),
    "dyt": norms.DyT(name="dyt"),
    "derf": norms.Derf(name="derf"),
}
EVERY = pytest.mark.parametrize("name", NORMS)
# Norms of the classes of others with other options. Most tests of whole models leave them to make test-full.
TWINS = {"nonparametric_ln", "prms", "l2", "derf"}


KINDS = pytest.mark.parametrize("name", some(NORMS, NORMS.keys() - TWINS))
EMBED, HIDDEN, BATCH, TIME = 5, 4, 10, 4
Module = TypeVar("Module", bound=nn.Module)
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class RecordedNoise:
    """Noise that changes nothing, and records each call: its kind, and shape and rate, or the device of attention."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def gaussian(self, x: Tensor, std: float) -> Tensor:
        self.calls.append(("gaussian", tuple(x.shape), std))
        return x

    def dropout(self, x: Tensor, p: float) -> Tensor:
        self.calls.append(("dropout", tuple(x.shape), p))
        return x

    def seed_default(self, device: torch.device) -> None:
        self.calls.append(("attention", device.type))


def mask_of(lengths: Tensor, time: int) -> Tensor:
    return torch.arange(time) < lengths.unsqueeze(1)


def fill(module: Module, seed: int = 1) -> Module:
    """Convert the module to float64, set NaN (the initial value of weights) to 0, and add noise to every parameter.

    Return the module.
    """
    for i, parameter in enumerate(module.double().parameters()):
        parameter.data = parameter.data.nan_to_num(0.0) + 0.4 * draw(*parameter.shape, seed=seed + i)
    return module


# Formulas of normalisation, without gain and shift. The input is (…, n), for batch norms (batch, n). That of DyT and
# Derf is already multiplied by alpha and shifted by the offset.
FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "bn": lambda x: (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt(),
    "wn": lambda x: x,
    "mean_only_bn": lambda x: x - x.mean(0),
    "ln": lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt(),
    "nonparametric_ln": lambda x: FORMULAS["ln"](x),
    "rms": lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt(),
    "prms": lambda x: x / (x[..., : math.ceil(x.shape[-1] / 4)].square().mean(-1, keepdim=True) + 1e-5).sqrt(),
    "l2": lambda x: x / (x.square().sum(-1, keepdim=True) + 1e-5).sqrt(),
    "rms+gain=false": lambda x: FORMULAS["rms"](x),
    "dyt": torch.tanh,
    "derf": torch.erf,
}


def by_formula(name: str, layer: Any, x: Tensor) -> Tensor:
    """Return what the normaliser ``layer`` of the norm ``name`` computes, by the formula and its parameters."""
    if isinstance(layer, norms.DynamicTanh):
        x = layer.alpha * x + (0 if layer.offset is None else layer.offset)
    return with_gain_and_shift(layer, FORMULAS[name](x))


def with_gain_and_shift(layer: Any, x: Tensor) -> Tensor:
    """Return ``x * gain + shift`` with the gain and the shift of the normaliser ``layer``; it may lack either."""
    x = x if layer.weight is None else x * layer.weight
    return x if layer.bias is None else x + layer.bias


def weight_of(site: Any) -> Tensor:
    """Return the effective weight of a linear layer: with a weight norm its rows are ``g_i v_i / |v_i|``."""
    weight: Tensor = site.weight
    if site.reparametrisation is None:
        return weight
    return site.reparametrisation.gain.unsqueeze(1) * weight / weight.norm(dim=1, keepdim=True)


def drawn_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the embeddings and the weights of linear layers, by name; each gate's block has its own entry."""
    drawn = {name: p.detach() for name, p in model.named_parameters(recurse=False) if p.dim() == 2}
    for name, site in model.named_modules():
        if isinstance(site, norms.Linear):
            drawn |= {f"{name}/{i}": block for i, block in enumerate(site.weight.detach().chunk(site.site.blocks))}
    return drawn


def without_gradient(module: nn.Module) -> set[str]:
    """Return the names of the parameters whose gradient is missing or, up to rounding errors, zero."""
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    return {name for name, gradient in gradients.items() if gradient is None or not gradient.norm() > 1e-10}
