"""Batch normalisation (Ioffe & Szegedy 2015) and mean-only batch normalisation (Salimans & Kingma 2016).

Inside recurrences, each time step has its own statistics (Cooijmans et al. 2017).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rmsexp.norms.base import Linear, Norm, Normaliser, Site, affine, compute_dtype
from rmsexp.system import checks

STATISTICS = ("running", "batch")


@dataclass(frozen=True, kw_only=True)
class BatchNormOptions(Norm):
    """Options that batch norm and mean-only batch norm share.

    Attributes:
        momentum: Weight of the newest batch in the running statistics, in (0, 1].
        min_examples: Inside a recurrence, a time step with fewer examples than this uses the running statistics instead
            of those of the batch, and does not update them. At least 1. Padding counts only if ``padding`` is
            "include".
        padding: Whether to "exclude" or "include" padding in the statistics.
        eval: Statistics used in evaluation: "running", or "batch" for those of the evaluated batch, as in the published
            attentive reader.

    Raises: ValueError for any other value.
    """

    momentum: float = 0.1
    min_examples: int = 8
    padding: str = "exclude"
    eval: str = "running"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fraction("norm.momentum", self.momentum)
        checks.at_least("norm.min_examples", self.min_examples, 1)
        checks.choice("norm.padding", self.padding, ("exclude", "include"))
        checks.choice("norm.eval", self.eval, STATISTICS)


@dataclass(frozen=True, kw_only=True)
class BN(BatchNormOptions):
    """Options of batch normalisation.

    Attributes:
        eps: Added to the variance, at least 0.
        initial_gain: Initial value of the gain, greater than 0; 0.1 avoids vanishing gradients in recurrences
            (Cooijmans et al. 2017, section 4). Not for layers that are initialised from data, which sets their gain.
        everywhere: Whether layers that the model makes by :meth:`Norm.optional` are normalised, too (BN-Everywhere).

    See :class:`BatchNormOptions` for the other options and for errors.
    """

    eps: float = 1e-5
    initial_gain: float = 1.0
    everywhere: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("norm.eps", self.eps, 0)
        checks.positive("norm.initial_gain", self.initial_gain)

    def optional(self, name: str, n_in: int, n_out: int, *, bias: bool = True) -> Linear:
        if not self.everywhere:
            return super().optional(name, n_in, n_out, bias=bias)
        layer = self.linear(name, n_in, n_out, bias=False, shift=bias)
        layer.optional = True
        return layer

    def check_effect(self, model: nn.Module) -> None:
        super().check_effect(model)
        if self.everywhere and not any(isinstance(layer, Linear) and layer.optional for layer in model.modules()):
            raise ValueError(
                "norm.everywhere=true has no effect on this task: the model has no layers that only it normalises"
            )

    def normaliser(self, site: Site) -> BatchNorm:
        if site.data_init and self.initial_gain != 1:
            raise ValueError(
                f"norm.initial_gain has no effect: {site.name} is initialised from data, which sets its gain"
            )
        shift = site.shift is not False and not site.then_bias  # no shift if the model adds its own bias afterwards
        return BatchNorm(
            site.features, self.eps, shift=shift, maps=site.feature_maps, initial_gain=self.initial_gain, options=self
        )


class Update(NamedTuple):
    """An update of running statistics by a batch."""

    span: range | None  # the time steps of the batch, or None outside of recurrences
    mean: Tensor  # one vector per time step
    var: Tensor  # biased; one vector per time step
    unbiased: Sequence[float]  # for each time step, the ratio of unbiased to biased variance
    enough: Sequence[bool]  # for each time step, whether it has enough examples; the others are not updated


class BatchNorm(Normaliser):
    """``y = (x - mean) / sqrt(var + eps) * weight + bias``, batch normalisation (Ioffe & Szegedy 2015, Algorithm 1).

    Mean and biased variance of each feature are over examples and positions, or with ``steps`` (see
    :meth:`Normaliser.forward`) over the examples at each time step. With a mask, padding is excluded unless
    ``options.padding`` is "include". Running statistics take the place of the batch's in evaluation, unless
    ``options.eval`` is "batch", and at time steps with fewer examples than ``options.min_examples``.

    A statistic without any example leaves the running statistics unchanged; the running ones are used in its place.

    Running statistics have shape ``(steps, features)``, with one row outside of recurrences. In training, longer
    sequences add rows. Rows start at mean 0 and variance 1, and each training batch moves them towards its statistics
    by ``options.momentum``. The first batch at a time step of a recurrence instead replaces them. A time step that no
    batch has updated uses the row of the last updated step before it, or the initial values if there is none.

    The running variance is computed from unbiased variances: the batch's biased variance times ``N / (N - 1)``. N is
    the number of vectors in the statistic. For feature maps N is the number of examples, as in Salimans & Kingma's code
    for CIFAR-10, unless ``counts_positions``; torch takes examples times positions.

    Args:
        features: Number of features, or of channels.
        eps: Added to the variance, at least 0.
        shift, maps, initial_gain: As for :class:`Normaliser`.
        options: Gives ``momentum``, ``min_examples``, ``padding`` and ``eval``; None uses the defaults.
    """

    running_mean: Tensor
    running_var: Tensor
    count: Tensor
    has_gain = True  # whether the centred input is divided by its standard deviation, and multiplied by a gain
    counts_positions = False  # whether N counts the positions of feature maps, too; in layers that `convert` made

    def __init__(
        self,
        features: int,
        eps: float = 1e-5,
        *,
        shift: bool = True,
        maps: bool = False,
        initial_gain: float = 1.0,
        options: BatchNormOptions | None = None,
    ) -> None:
        checks.at_least("eps", eps, 0)
        super().__init__(features, gain=self.has_gain, shift=shift, maps=maps, initial_gain=initial_gain)
        self.eps = eps
        self.options = options or BN(name="bn")
        self.statistics = self.options.eval
        self.register_buffer("running_mean", torch.zeros(1, features))
        self.register_buffer("running_var", torch.ones(1, features))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))  # number of batches that updated a row
        self._before: tuple[Tensor, Tensor, Tensor] | None = None  # the buffers at hold_updates
        self._held: list[Update] = []

    def forward(self, x: Tensor, mask: Tensor | None = None, steps: int | range | None = None) -> Tensor:
        """Normalise ``x``, and in training update the running statistics; see :meth:`Normaliser.forward`.

        torch.compile traces this method whole, unless a mask excludes padding from batch statistics.
        """
        self.check_input(x)
        if mask is not None and mask.dim() < x.dim() - 1:  # (batch, time) for queries (batch, time, heads, n)
            mask = mask.view(*mask.shape, *[1] * (x.dim() - 1 - mask.dim())).expand(x.shape[:-1])
        wide = x.to(compute_dtype(x.dtype))
        span = range(steps, steps + 1) if isinstance(steps, int) else steps
        use_batch = self.training or self.statistics == "batch"
        centred, var = self._centre_by_batch(wide, mask, span) if use_batch else self._centre_by_running(wide, span)
        gain, shift = self.broadcast(self.weight), self.broadcast(self.bias)
        scale = torch.rsqrt(var + self.eps) if self.has_gain else None
        return affine(centred, scale, gain, shift, fold=True).to(x.dtype)

    def check_input(self, x: Tensor) -> None:
        super().check_input(x)
        if x.dim() < 2:
            raise ValueError(f"{type(self).__name__} expects a batch (batch, …, features), got shape {tuple(x.shape)}")

    def hold_updates(self) -> None:
        """Keep a list of the updates of the running statistics from now on, which :meth:`release_updates` undoes."""
        self._before = (self.running_mean.clone(), self.running_var.clone(), self.count.clone())

    def release_updates(self) -> list[Update]:
        """Set the running statistics to those at :meth:`hold_updates`, and return the updates since then, in order."""
        assert self._before is not None
        self.running_mean, self.running_var, self.count = self._before
        updates, self._before, self._held = self._held, None, []
        return updates

    def apply_updates(self, updates: Sequence[Update]) -> None:
        """Apply updates that :meth:`release_updates` returned."""
        for update in updates:
            self._grow(update.span.stop if update.span is not None else 1)
            self._update(update)

    def extra_repr(self) -> str:
        bias, gain = self.bias is not None, f", initial_gain={self.initial_gain}" if self.has_gain else ""
        eps = f", eps={self.eps}" if self.has_gain else ""
        return f"{self.shape[0]}{eps}, shift={bias}, maps={self.maps}{gain}, options={self.options}"

    def _centre_by_running(self, x: Tensor, span: range | None) -> tuple[Tensor, Tensor]:
        """Return ``x`` minus the running mean, and the running variance. ``span``: as in :class:`Update`."""
        rows: list[int] | Tensor = [0]
        if span is not None:
            steps = torch.arange(len(self.count), device=self.count.device)
            # known[t]: the last row up to t that a batch has updated, or 0
            known = torch.where(self.count > 0, steps, 0).cummax(0).values
            rows = known[torch.arange(span.start, span.stop, device=known.device).clamp(max=len(known) - 1)]
        wide = compute_dtype(self.running_mean.dtype)
        mean, var = self.running_mean[rows].to(wide), self.running_var[rows].to(wide)
        if self.maps:
            mean, var = mean.view(-1, 1, 1), var.view(-1, 1, 1)
        return x - mean, var

    def _centre_by_batch(self, x: Tensor, mask: Tensor | None, span: range | None) -> tuple[Tensor, Tensor]:
        """Return ``x`` minus the batch's mean, and the batch's biased variance, or ones for mean-only batch norm.

        For time steps with fewer examples than ``min_examples``, and for a batch without examples, mean and variance
        are the running ones. In training, the running statistics are updated.
        """
        axes = (0, 2, 3) if self.maps else (0,) if span is not None else tuple(range(x.dim() - 1))
        if self.training and span is not None:
            self._grow(span.stop)
        size = math.prod([x.shape[axis] for axis in axes])  # number of vectors in a statistic, with padding
        if mask is None or self.options.padding == "include":
            sizes = [size] * (1 if span is None else len(span))
        else:  # tolist() waits for a GPU and breaks a graph, but the sizes tell which operations can be skipped below
            sizes = mask.sum(axes).reshape(-1).tolist()
        if self.training and span is None and size == 1:
            raise ValueError("expected more than one value per channel in training, as batch norms of torch do")
        least = 1 if span is None else self.options.min_examples
        enough = [bool(n >= least) for n in sizes]  # without bool() torch.compile keeps an expression of the sizes
        if not any(enough):
            return self._centre_by_running(x, span)
        mask_weight = None
        if mask is not None and min(sizes) < size:
            valid = mask.to(x.dtype).unsqueeze(-1)
            mask_weight = valid / valid.sum(axes, keepdim=True).clamp(min=1)

        mean = _mean(x, mask_weight, axes)
        centred = x - mean
        var = _mean(centred.square(), mask_weight, axes) if self.has_gain else torch.ones_like(mean)  # else not read
        if self.training:
            unbiased = [n / max(n - 1, 1) for n in ([len(x)] if self.maps and not self.counts_positions else sizes)]
            update = Update(span, mean.detach(), var.detach(), unbiased, enough)
            if self._before is not None:
                self._held.append(update)
            self._update(update)
        if all(enough):
            return centred, var
        by_batch = torch.tensor(enough, device=x.device).unsqueeze(-1)
        centred_by_running, running_var = self._centre_by_running(x, span)
        return torch.where(by_batch, centred, centred_by_running), torch.where(by_batch, var, running_var)

    @torch.no_grad()
    def _update(self, update: Update) -> None:
        span, mean, var, unbiased, enough = update
        steps, dtype = range(1) if span is None else span, compute_dtype(self.running_mean.dtype)
        rows, shape = slice(steps.start, steps.stop), (len(steps), -1)
        weight: float | Tensor = self.options.momentum
        factor: float | Tensor = unbiased[0]
        updated: int | Tensor = 1
        if span is not None:
            first = (self.count[rows] == 0).unsqueeze(-1)
            momenta = torch.full(first.shape, self.options.momentum, dtype=dtype, device=mean.device)
            weight = momenta.masked_fill(first, 1.0)
        if len(steps) > 1:
            factor = torch.tensor(unbiased, dtype=dtype, device=mean.device).unsqueeze(-1)
        if not all(enough):
            updated = torch.tensor(enough, device=mean.device)
            weight = updated.unsqueeze(-1) * weight
        for running, new in ((self.running_mean[rows], mean), (self.running_var[rows], var.to(dtype) * factor)):
            # in float16 the new statistics may overflow, although their weighted mean with the old ones would not
            running.copy_(running.to(dtype).lerp(new.to(dtype).view(shape), weight))
        self.count[rows] += updated

    def _grow(self, steps: int) -> None:
        """Append rows of initial running statistics until there are at least ``steps`` rows."""
        missing = steps - len(self.count)
        if missing > 0:
            mean, var = self.running_mean, self.running_var
            self.running_mean = torch.cat([mean, mean.new_zeros(missing, mean.shape[1])])
            self.running_var = torch.cat([var, var.new_ones(missing, var.shape[1])])
            self.count = torch.cat([self.count, self.count.new_zeros(missing)])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        names = ("running_mean", "running_var", "count")
        saved = [state_dict.get(prefix + name) for name in names]
        shapes = [tuple(value.shape) for value in saved if isinstance(value, Tensor)]
        steps = max((size for shape in shapes for size in shape[:1]), default=0)
        # The number of time steps may differ from that in the saved state. Of other differences torch reports an error,
        # and the buffers stay as they are.
        if steps and shapes == [(steps, *self.shape), (steps, *self.shape), (steps,)]:
            for name in names:
                buffer = getattr(self, name)
                setattr(self, name, buffer if len(buffer) == steps else buffer.new_empty(steps, *buffer.shape[1:]))
        super()._load_from_state_dict(state_dict, prefix, *args)


def _mean(x: Tensor, weight: Tensor | None, axes: tuple[int, ...]) -> Tensor:
    """Return the mean over ``axes``, weighted if there are weights, which sum to 1; the axes then have size 1."""
    return x.mean(axes, keepdim=True) if weight is None else (x * weight).sum(axes, keepdim=True)


def without_batch_statistics(model: nn.Module) -> nn.Module:
    """Return a model of which no batch norm evaluates with the statistics of evaluated batches. Raises: ValueError.

    These include tokens that are to be predicted, other hypotheses of a search, or captions of similar length.
    """
    for module in model.modules():
        ours = isinstance(module, BatchNorm) and module.statistics == "batch"
        if ours or (isinstance(module, _BatchNorm) and module.running_mean is None):
            option = "norm.eval=batch" if ours else "track_running_stats=false"
            raise ValueError(f"{option} is not possible: results would depend on what is evaluated in one batch")
    return model


class MeanOnlyBatchNorm(BatchNorm):
    """``y = x - mean + bias``, mean-only batch normalisation (Salimans & Kingma 2016, section 4).

    It is used with weight normalisation, whose gain takes the place of the norm's. Arguments are those of
    :class:`BatchNorm`; ``eps`` and ``initial_gain`` have no effect.
    """

    has_gain = False


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Return a context after which a model has the same buffers, such as running statistics, with the same values."""
    owners = [(module._buffers, dict(module._buffers)) for module in model.modules()]
    values = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffers, before in owners:
            buffers.update(before)  # batch norms replace theirs if a sequence is longer than before
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)
