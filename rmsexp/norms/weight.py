"""No norm, weight normalisation, and weight normalisation with mean-only batch norm (Salimans & Kingma 2016)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rmsexp.norms.base import Norm, Site
from rmsexp.norms.batch import BatchNormOptions, MeanOnlyBatchNorm
from rmsexp.system import checks


class Gain(nn.Module):
    """``w_i = g_i * v_i``: the weight ``v_i`` of each of the units, scaled by its gain ``g_i``, which starts at 1."""

    def __init__(self, features: int, *, trainable: bool = True) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(features), requires_grad=trainable)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the effective weight; ``weight`` is ``(features, …)``, one row per unit."""
        return weight * self.gain.view(-1, *[1] * (weight.dim() - 1))


class WeightNorm(Gain):
    """``w_i = g_i * v_i / sqrt(||v_i||^2 + eps)``, weight normalisation (Salimans & Kingma 2016, Eq. 2).

    The norm of ``v_i`` is over all weights of unit i: all inputs, and all positions of a convolution kernel.
    With ``inverse``, ``w_i = v_i / (sqrt(||v_i||^2 + eps) * g_i)``, as in Nematus for Theano (``layers.py``, line 105).

    Args:
        features: Number of units.
        eps: Added to the squared norm, at least 0; 0 in the paper.
        keep_scale: Whether :meth:`start_from` sets the gain, so that training starts from the weight that was drawn.
        inverse: Whether the weight is divided by the gain instead of multiplied.
    """

    def __init__(self, features: int, eps: float = 0.0, *, keep_scale: bool = False, inverse: bool = False) -> None:
        checks.at_least("eps", eps, 0)
        super().__init__(features)
        self.eps, self.keep_scale, self.inverse = eps, keep_scale, inverse

    def extra_repr(self) -> str:
        return f"{len(self.gain)}, eps={self.eps}, keep_scale={self.keep_scale}, inverse={self.inverse}"

    @torch.no_grad()
    def start_from(self, weight: Tensor) -> None:
        """With ``keep_scale``, set g_i to ``sqrt(||v_i||^2 + eps)`` (``inverse``: 1 over it), so that ``w_i = v_i``."""
        if self.keep_scale:
            lengths = (self._squares(weight) + self.eps).sqrt()
            self.gain.copy_(1 / lengths if self.inverse else lengths)

    def forward(self, weight: Tensor) -> Tensor:
        inverse_lengths = torch.rsqrt(self._squares(weight) + self.eps)
        scale = inverse_lengths / self.gain if self.inverse else self.gain * inverse_lengths
        return weight * scale.view(-1, *[1] * (weight.dim() - 1))

    @staticmethod
    def _squares(weight: Tensor) -> Tensor:
        return weight.square().flatten(1).sum(1)


@dataclass(frozen=True, kw_only=True)
class NoNorm(Norm):
    """No norm: activations and weights are used unchanged.

    A site that is initialised from data is an exception: its weight has one gain per unit, which the initialisation
    sets and training does not change.
    """

    fusible = True

    def reparametrisation(self, site: Site) -> Gain | None:
        return Gain(site.features, trainable=False) if site.data_init else None


@dataclass(frozen=True, kw_only=True)
class WN(Norm):
    """Options of weight normalisation. ``eps``, at least 0, is that of :class:`WeightNorm`.

    ``keep_scale``: whether training starts from the drawn weights, as with ``torch.nn.utils.weight_norm``; otherwise
    (also for None) the effective weight vector of each unit starts with length 1. ``inverse_gain``: whether the weight
    is divided by the gain instead of multiplied; not for layers that are initialised from data, which scales the gain.
    """

    eps: float = 0.0
    keep_scale: bool | None = None
    inverse_gain: bool | None = None

    fusible = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("norm.eps", self.eps, 0)

    def reparametrisation(self, site: Site) -> WeightNorm:
        if self.inverse_gain and site.data_init:
            raise ValueError(f"leave out norm.inverse_gain=true: {site.name} is initialised from data")
        keep_scale, inverse = bool(self.keep_scale), bool(self.inverse_gain)
        return WeightNorm(site.features, self.eps, keep_scale=keep_scale, inverse=inverse)


@dataclass(frozen=True, kw_only=True)
class MeanOnlyBN(BatchNormOptions):
    """Options of mean-only batch normalisation (Salimans & Kingma 2016, section 4).

    Weight normalisation is applied as well; ``keep_scale`` is that of :class:`WN`. See :class:`BatchNormOptions` for
    the other options.
    """

    keep_scale: bool | None = None

    def normaliser(self, site: Site) -> MeanOnlyBatchNorm:
        return MeanOnlyBatchNorm(site.features, shift=site.shift is not False, maps=site.feature_maps, options=self)

    def reparametrisation(self, site: Site) -> WeightNorm:
        return WeightNorm(site.features, keep_scale=bool(self.keep_scale))
