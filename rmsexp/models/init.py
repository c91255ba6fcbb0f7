"""Initial values: drawn by parameter name, so that norms with the same initialiser start equal, or taken from data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from rmsexp.norms import Linear

Initialiser = Callable[[Tensor, torch.Generator], None]


def glorot_uniform(weight: Tensor, generator: torch.Generator, extra: int = 0) -> None:
    """Uniform within ``sqrt(6 / ((n_in + n_out + extra) * kernel area))`` (Glorot & Bengio 2010, Eq. 16)."""
    n_out, n_in, *kernel = weight.shape
    bound = math.sqrt(6 / ((n_in + n_out + extra) * math.prod(kernel)))
    weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))


def orthogonal(weight: Tensor, generator: torch.Generator) -> None:
    """A random orthogonal matrix."""
    q, r = torch.linalg.qr(torch.empty(weight.shape).normal_(0, 1, generator=generator))
    weight.copy_(q * r.diagonal().sign())  # the signs make it uniform over the orthogonal matrices


def normal(std: float) -> Initialiser:
    """Normal with mean 0."""

    def draw(weight: Tensor, generator: torch.Generator) -> None:
        weight.copy_(torch.empty(weight.shape).normal_(0, std, generator=generator))

    return draw


def uniform(bound: float) -> Initialiser:
    """Uniform within ``bound`` around 0."""

    def draw(weight: Tensor, generator: torch.Generator) -> None:
        weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))

    return draw


def square_or_not(square: Initialiser, other: Initialiser) -> Initialiser:
    """What ``square`` draws where the weight is a square matrix, and ``other`` elsewhere."""

    def draw(weight: Tensor, generator: torch.Generator) -> None:
        (square if weight.shape[0] == weight.shape[1] else other)(weight, generator)

    return draw


def small_orthogonal(weight: Tensor, generator: torch.Generator) -> None:
    """0.05 times a random orthogonal matrix (attentive reader)."""
    orthogonal(weight, generator)
    weight.mul_(0.05)


orthogonal_or_small_normal = square_or_not(orthogonal, normal(0.01))  # Nematus
small_orthogonal_or_glorot = square_or_not(small_orthogonal, partial(glorot_uniform, extra=1))  # attentive reader


def centred(initialiser: Initialiser, centre: float) -> Initialiser:
    """What ``initialiser`` draws, moved to ``centre`` (the paper's Figure 4)."""

    def draw(weight: Tensor, generator: torch.Generator) -> None:
        initialiser(weight, generator)
        weight.add_(centre)

    return draw


INITIALISERS: dict[str, Initialiser] = {"glorot_uniform": glorot_uniform, "normal_005": normal(0.05)}


@torch.no_grad()
def initialise(
    model: nn.Module,
    initialiser: Initialiser,
    stream: Callable[[str], torch.Generator],
    others: Mapping[str, Initialiser] | None = None,
) -> None:
    """Draws every weight that waits for a value (is NaN), each from the stream of its name.

    ``others`` are the initialisers of parameters that differ, by name. The blocks of a site are drawn one by one.
    """
    blocks = {f"{name}.weight": site.site.blocks for name, site in model.named_modules() if isinstance(site, Linear)}
    for name, parameter in model.named_parameters():
        if not parameter.isnan().any():
            continue
        draw = (others or {}).get(name, initialiser)
        parts = parameter.chunk(blocks.get(name, 1))
        for index, part in enumerate(parts):
            draw(part, stream(name if len(parts) == 1 else f"{name}/{index}"))


@torch.no_grad()
def initialise_from_data(model: nn.Module, forward: Callable[[], object]) -> None:
    """Makes the sites that ask for it put out mean 0 and standard deviation 1 a unit over the data of one forward pass.

    Each sees input that the sites before it have standardised (Salimans & Kingma 2016, section 3). Buffers, such as
    running statistics, are left as they were.
    """

    def standardise(site: nn.Module, inputs: object, output: Tensor) -> Tensor:  # noqa: ARG001
        assert isinstance(site, Linear)
        axes = (0, 2, 3) if output.dim() == 4 else tuple(range(output.dim() - 1))
        mean = output.mean(axes, keepdim=True)
        std = (output - mean).square().mean(axes, keepdim=True).sqrt()
        site.standardise_(mean.flatten(), std.flatten())
        return (output - mean) / std

    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    sites = [module for module in model.modules() if isinstance(module, Linear) and module.site.data_init]
    hooks = [site.register_forward_hook(standardise) for site in sites]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
