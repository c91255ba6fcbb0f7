"""What a model asks of its norm, and what a norm's family has to define.

A model names its *sites* and never asks which norm it has::

    norm.linear(name, n_in, n_out)    a map whose result is normalised (the paper's summed inputs)
    norm.value(name, features)        a normaliser of something that is no map's result (the LSTM cell, a residual sum)
    norm.plain(name, n_in, n_out)     an un-normalised map that only weight norms re-parametrise
    norm.optional(name, n_in, n_out)  a plain map, unless the norm is asked to be everywhere (BN-Everywhere)

A family is a frozen dataclass of options below :class:`Norm`. It defines :meth:`Norm.normaliser` (what happens to
activations), :meth:`Norm.reparametrisation` (what happens to weights), or both. Shapes in this package: ``(batch, n)``,
``(batch, time, n)`` and maps ``(batch, channels, height, width)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp import checks, kernels

IMPLS = ("eager", "fused")
REDUCED = (torch.float16, torch.bfloat16)  # their statistics are taken in float32


@dataclass(frozen=True)
class Site:
    """One place of a model that is normalised.

    ``maps``: the input is 4-D. ``shift``: whether the recipe has a bias *after* the norm here (None: as the norm is
    defined). ``then_bias``: the model adds a bias to the result itself. ``blocks``: how many maps of equal width, such
    as gates, are concatenated in the features; each is initialised alone. ``data_init``: whether the recipe initialises
    it from data.
    """

    name: str
    features: int
    maps: bool = False
    shift: bool | None = None
    then_bias: bool = False
    blocks: int = 1
    data_init: bool = False


class Normaliser(nn.Module):
    """Normalises activations. ``weight`` is its gain and ``bias`` its shift, each ``(features,)`` or None.

    ``activates``: whether its kernel applies a leaky ReLU to the result too, given the ``slope`` of one.
    """

    activates = False
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, shape: int | tuple[int, ...], *, gain: bool, shift: bool, maps: bool = False) -> None:
        super().__init__()
        self.maps = maps
        self.weight = nn.Parameter(torch.ones(shape)) if gain else None
        self.bias = nn.Parameter(torch.zeros(shape)) if shift else None

    def forward(self, x: Tensor, mask: Tensor | None = None, steps: int | range | None = None) -> Tensor:
        """Normalises ``x``.

        ``mask``, ``(batch,)`` or ``(batch, time)``, is true where ``x`` is real and not padding. ``steps`` is set in
        a recurrence: the time step of a 2-D ``x``, or the steps of the time axis of a 3-D one. Norms whose statistics
        are per position ignore both.
        """
        raise NotImplementedError

    def form(self, n: int) -> kernels.Form:
        """What the fused kernels compute over ``n`` units. Raises: NotImplementedError where they cannot."""
        raise NotImplementedError

    def broadcast(self, vector: Tensor | None) -> Tensor | None:
        """A vector over channels, shaped to meet the input."""
        return vector if vector is None or not self.maps else vector.view(-1, 1, 1)


class Identity(Normaliser):
    """No norm: what ``none`` and ``wn`` do to activations."""

    def __init__(self) -> None:
        super().__init__(1, gain=False, shift=False)

    def form(self, n: int) -> kernels.Form:
        return kernels.Form(kernels.Kind.NONE, n)

    def forward(self, x: Tensor, mask: Tensor | None = None, steps: int | range | None = None) -> Tensor:  # noqa: ARG002
        return x


def affine(x: Tensor, scale: Tensor | None, gain: Tensor | None, shift: Tensor | None, *, fold: bool) -> Tensor:
    """``x * scale * gain + shift``; None leaves a term out. With ``fold`` the two factors meet first."""
    if scale is not None and gain is not None:
        if fold:
            gain = scale * gain
        else:
            x = x * scale
    factor = scale if gain is None else gain
    if factor is None:
        return x if shift is None else x + shift
    return x * factor if shift is None else torch.addcmul(shift, x, factor)


class Linear(nn.Module):
    """A map and its norm: ``norm(W x + b)``, W of shape ``(n_out, n_in)`` or ``(n_out, n_in, kernel, kernel)``.

    Weights are made as NaN: :func:`rmsexp.models.init.initialise` draws them, and what it misses cannot go unseen.
    A recurrence takes :meth:`effective_weight` once a sequence, and calls :meth:`map` and ``norm`` itself.
    """

    def __init__(
        self,
        site: Site,
        n_in: int,
        norm: Normaliser,
        reparametrisation: nn.Module | None,
        *,
        bias: bool,
        kernel_size: int | None = None,
        padding: int = 0,
    ) -> None:
        super().__init__()
        self.site = site
        self.padding = padding
        kernel = () if kernel_size is None else (kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.full((site.features, n_in, *kernel), float("nan")))
        self.bias = nn.Parameter(torch.zeros(site.features)) if bias else None
        self.reparametrisation = reparametrisation
        self.norm = norm

    def effective_weight(self) -> Tensor:
        """The weight that the map uses: after weight normalisation, where there is one."""
        return self.weight if self.reparametrisation is None else self.reparametrisation(self.weight)

    def map(self, x: Tensor, weight: Tensor) -> Tensor:
        """``W x + b``, before the norm."""
        if weight.dim() == 2:
            return F.linear(x, weight, self.bias)
        return F.conv2d(x, weight, self.bias, padding=self.padding)

    def forward(self, x: Tensor, mask: Tensor | None = None, steps: int | range | None = None) -> Tensor:
        return self.norm(self.map(x, self.effective_weight()), mask=mask, steps=steps)

    def leaky_relu(self, x: Tensor, slope: float) -> Tensor:
        """The result with a leaky ReLU, by the norm where it can and no initialisation looks in between."""
        if self.norm.activates and not self.site.data_init:
            return self.norm(self.map(x, self.effective_weight()), slope=slope)
        return F.leaky_relu(self(x), slope)

    @torch.no_grad()
    def standardise_(self, mean: Tensor, std: Tensor) -> None:
        """Divides the gain by ``std`` and moves the shift to ``-mean / std`` (Salimans & Kingma 2016, section 3)."""
        gain = self.norm.weight if self.reparametrisation is None else self.reparametrisation.gain
        shift = self.norm.bias if self.norm.bias is not None else self.bias
        if not isinstance(gain, Tensor):
            raise ValueError(f"{self.site.name}: initialising from data needs a norm with a gain")
        gain.div_(std)
        if shift is not None:
            shift.copy_(-mean / std)


@dataclass(frozen=True, kw_only=True)
class Norm:
    """One normaliser with its options: what ``configs/norm/<name>.yaml`` describes.

    ``impl``: "eager" composes elementary tensor operations, every norm at the same level, as in the paper; "fused" is
    the fastest exact form on the device (:mod:`rmsexp.kernels`), of layers and of whole recurrences.
    """

    name: str
    impl: str = "eager"

    impls: ClassVar[tuple[str, ...]] = ("eager",)

    def __post_init__(self) -> None:
        checks.choice("norm.impl", self.impl, self.impls)

    @property
    def effective_impl(self) -> str:
        """``impl``, or "eager" where the fused kernels cannot be built."""
        return "fused" if self.impl == "fused" and kernels.load() else "eager"

    def linear(
        self,
        name: str,
        n_in: int,
        n_out: int,
        *,
        bias: bool = True,
        shift: bool | None = None,
        then_bias: bool = False,
        blocks: int = 1,
        kernel_size: int | None = None,
        padding: int = 0,
        data_init: bool = False,
    ) -> Linear:
        """A map whose result is normalised, ``bias`` inside the norm and ``shift`` after it (see :class:`Site`).

        With ``kernel_size`` it is a 2-D convolution over maps.
        """
        maps = kernel_size is not None
        site = Site(name, n_out, maps, shift=shift, then_bias=then_bias, blocks=blocks, data_init=data_init)
        normaliser = self.normaliser(site)
        if isinstance(normaliser, Identity):  # nothing between the two: a bias after the norm is the map's own
            bias = bias or bool(shift)
        weights = self.reparametrisation(site)
        return Linear(site, n_in, normaliser, weights, bias=bias, kernel_size=kernel_size, padding=padding)

    def value(self, name: str, features: int) -> Normaliser:
        """A normaliser of ``features`` values that are no map's result."""
        return self.normaliser(Site(name, features))

    def plain(self, name: str, n_in: int, n_out: int, *, bias: bool = True) -> Linear:
        """A map whose result is not normalised."""
        site = Site(name, n_out)
        return Linear(site, n_in, Identity(), self.reparametrisation(site), bias=bias)

    def optional(self, name: str, n_in: int, n_out: int, *, bias: bool = True) -> Linear:
        """A map that the recipe's norms leave alone, and a norm that is asked to be everywhere does not."""
        return self.plain(name, n_in, n_out, bias=bias)

    def normaliser(self, site: Site) -> Normaliser:  # noqa: ARG002
        """What happens to the activations of a site."""
        return Identity()

    def reparametrisation(self, site: Site) -> nn.Module | None:  # noqa: ARG002
        """What happens to the weight of a site: a module that takes it and has a ``gain``, or None."""
        return None
