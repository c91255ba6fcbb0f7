"""Set initial values: draw weights at random, and compute gains and biases from data.

The caller gives a random stream for the name of each weight. Names do not depend on the norm, so models that differ
only in their norm start from the same weights.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from rmsexp.norms import Linear
from rmsexp.norms.batch import kept_buffers
from rmsexp.norms.weight import WeightNorm

Initialiser = Callable[[Tensor, torch.Generator], object]  # overwrites a weight with random values


def glorot_uniform(weight: Tensor, generator: torch.Generator, extra: int = 0) -> None:
    """Draw the weight uniformly from [-b, b], ``b = sqrt(6 / ((n_in + n_out + extra) * kernel area))``.

    The weight is ``(n_out, n_in)`` or ``(n_out, n_in, height, width)``. Source: Glorot & Bengio 2010, Eq. 16, which has
    no ``extra``.
    """
    n_out, n_in, *kernel = weight.shape
    uniform(math.sqrt(6 / ((n_in + n_out + extra) * math.prod(kernel))))(weight, generator)


def orthogonal(weight: Tensor, generator: torch.Generator, gain: float = 1.0) -> None:
    """Draw a square weight uniformly (by the Haar measure) from the orthogonal matrices, times ``gain``."""
    q, r = torch.linalg.qr(torch.empty(weight.shape).normal_(0, 1, generator=generator))
    weight.copy_(gain * (q * r.diagonal().sign()))  # without the signs q is not distributed uniformly


def normal(std: float) -> Initialiser:
    """Return an initialiser that draws from the normal distribution with mean 0 and standard deviation ``std``."""
    return lambda weight, generator: weight.copy_(torch.empty(weight.shape).normal_(0, std, generator=generator))


def lecun_normal(weight: Tensor, generator: torch.Generator) -> None:
    """Fill the weight, (n_out, n_in), with normal draws of mean 0 and standard deviation ``n_in^-0.5``.

    Source: LeCun et al. 1998, Efficient BackProp, Eq. 16.
    """
    normal(weight.shape[1] ** -0.5)(weight, generator)


def uniform(bound: float) -> Initialiser:
    """Return an initialiser that draws uniformly from [-bound, bound]."""
    return lambda weight, generator: weight.copy_(
        torch.empty(weight.shape).uniform_(-bound, bound, generator=generator)
    )


def square_or_not(square: Initialiser, other: Initialiser) -> Initialiser:
    """Return an initialiser of matrices that applies ``square`` to square ones and ``other`` to the others."""
    return lambda weight, generator: (square if weight.shape[0] == weight.shape[1] else other)(weight, generator)


def centred(initialiser: Initialiser, centre: float) -> Initialiser:
    """Return an initialiser that adds ``centre`` to each value drawn by ``initialiser`` (the paper's Figure 4)."""

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
    """Draw, in place, every parameter that contains NaN, the mark of a parameter that has no value yet.

    Weights of linear layers are multiplied by ``initial_scale``. Then weight norm with ``keep_scale`` sets its gains.

    Args:
        initialiser: draws all parameters that ``others`` does not name.
        stream: returns the random generator for the name of a parameter, or for ``<name>/<i>`` if it is matrix i of a
            layer's weight that stacks several, such as the gates of a GRU.
        others: initialisers of individual parameters, by parameter name.
    """
    layers = {f"{name}.weight": layer for name, layer in model.named_modules() if isinstance(layer, Linear)}
    for name, parameter in model.named_parameters():
        if not parameter.isnan().any():
            continue
        draw = (others or {}).get(name, initialiser)
        layer = layers.get(name)
        parts = parameter.chunk(1 if layer is None else layer.site.blocks)
        for index, part in enumerate(parts):
            draw(part, stream(name if len(parts) == 1 else f"{name}/{index}"))
        if layer is not None:
            parameter.mul_(torch.as_tensor(layer.initial_scale, dtype=parameter.dtype, device=parameter.device))
    for module in model.modules():
        if isinstance(module, Linear) and isinstance(module.reparametrisation, WeightNorm):
            module.reparametrisation.start_from(module.weight)


@torch.no_grad()
def initialise_from_data(model: nn.Module, forward: Callable[[], object]) -> None:
    """Set gain and bias of each layer with ``site.data_init`` so that its outputs have mean 0 and standard deviation 1.

    Both are taken for each unit or channel over the data of one forward pass, which ``forward`` runs. Each layer passes
    its standardised output to the next. Buffers, such as running statistics, keep their values.

    Source: Salimans & Kingma 2016, section 3. Raises: ValueError if such a layer has no gain or no bias after its norm,
    or if the standard deviation of a unit is 0 or not finite.
    """

    def standardise(site: nn.Module, inputs: object, output: Tensor) -> Tensor:  # noqa: ARG001
        assert isinstance(site, Linear)
        axes = (0, 2, 3) if output.dim() == 4 else tuple(range(output.dim() - 1))
        mean = output.mean(axes, keepdim=True)
        std = (output - mean).square().mean(axes, keepdim=True).sqrt()
        rounding = 10 * torch.finfo(std.dtype).eps * mean.abs()
        if not ((std > rounding) & std.isfinite()).all():
            reason = "a unit's output is constant or not finite there"
            raise ValueError(f"{site.site.name} cannot be initialised from data: {reason}")
        site.standardise_(mean.flatten(), std.flatten())
        return (output - mean) / std

    sites = [module for module in model.modules() if isinstance(module, Linear) and module.site.data_init]
    hooks = [site.register_forward_hook(standardise) for site in sites]
    try:
        with kept_buffers(model):
            forward()
    finally:
        for hook in hooks:
            hook.remove()
