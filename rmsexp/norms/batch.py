"""Batch normalisation (Ioffe & Szegedy 2015), per time step inside recurrences (Cooijmans et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from rmsexp import checks
from rmsexp.norms.base import REDUCED, Linear, Norm, Normaliser, Site, affine

STATISTICS = ("running", "batch")


@dataclass(frozen=True, kw_only=True)
class BatchNormOptions(Norm):
    """``momentum``: weight of the newest batch in the running statistics. ``padding``: whether padding enters them.

    ``min_examples``: a time step of a recurrence with fewer real examples uses the running statistics instead.
    ``eval``: "running" statistics in evaluation, or those of the evaluated "batch" (published attentive reader).
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

    ``initial_gain``: 0.1 keeps the gradients of a recurrence alive (Cooijmans et al. 2017, section 4). ``everywhere``:
    the maps that the recipe leaves alone are normalised too (BN-Everywhere).
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
        return self.linear(name, n_in, n_out, bias=False, shift=bias)

    def normaliser(self, site: Site) -> BatchNorm:
        shift = site.shift is not False and not site.then_bias  # the mean of what follows is the model's to set
        layer = BatchNorm(site.features, self.eps, shift=shift, maps=site.maps, options=self)
        assert layer.weight is not None
        with torch.no_grad():
            layer.weight.fill_(self.initial_gain)
        return layer


class BatchNorm(Normaliser):
    """``y = (x - mean) / sqrt(var + eps) * weight + bias``, mean and biased variance of each unit over the batch.

    Statistics are over examples and positions (the real ones, with a mask); with ``steps``, apart for each time step.
    Running statistics, ``(steps, features)``, start at 0 and 1 and move by ``momentum``; those of a time step begin
    with its first batch, and a step that has none uses those of the step before. The running variance is unbiased:
    ``N / (N - 1)`` with N the vectors in a statistic, or the examples for maps, as in the code for CIFAR-10.
    """

    running_mean: Tensor
    running_var: Tensor
    count: Tensor
    gain = True

    def __init__(
        self,
        features: int,
        eps: float = 1e-5,
        *,
        shift: bool = True,
        maps: bool = False,
        options: BatchNormOptions | None = None,
    ) -> None:
        super().__init__(features, gain=self.gain, shift=shift, maps=maps)
        self.eps = eps
        self.options = options or BN(name="bn")
        self.statistics = self.options.eval
        self.register_buffer("running_mean", torch.zeros(1, features))
        self.register_buffer("running_var", torch.ones(1, features))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))  # of batches behind each of them

    def forward(self, x: Tensor, mask: Tensor | None = None, steps: int | range | None = None) -> Tensor:
        """See :meth:`Normaliser.forward`; ``x`` is ``(batch, n)``, ``(batch, time, n)`` or maps."""
        wide = x.float() if x.dtype in REDUCED else x
        span = range(steps, steps + 1) if isinstance(steps, int) else steps
        of_batch = self.training or self.statistics == "batch"
        centred, var = self._by_batch(wide, mask, span) if of_batch else self._by_running(wide, span)
        gain, shift = self.broadcast(self.weight), self.broadcast(self.bias)
        return affine(centred, self.scale(var), gain, shift, fold=True).to(x.dtype)

    def scale(self, var: Tensor) -> Tensor | None:
        return torch.rsqrt(var + self.eps)

    def _by_running(self, x: Tensor, span: range | None) -> tuple[Tensor, Tensor]:
        """Centred by the running mean, and the variance; a step that has none takes those of the last before it."""
        rows = [0]
        if span is not None:
            known = list(accumulate((step if count else 0 for step, count in enumerate(self.count.tolist())), max))
            rows = [known[min(step, len(known) - 1)] for step in span]
        mean, var = self.running_mean[rows], self.running_var[rows]
        if self.maps:
            mean, var = mean.view(-1, 1, 1), var.view(-1, 1, 1)
        return x - mean, var

    def _by_batch(self, x: Tensor, mask: Tensor | None, span: range | None) -> tuple[Tensor, Tensor]:
        """Centred by the batch's mean, and its biased variance; a time step with few examples by the running ones."""
        axes = (0, 2, 3) if self.maps else (0,) if span is not None else tuple(range(x.dim() - 1))
        if self.training and span is not None:
            self._grow(span.stop)
        steps, size = span or range(1), math.prod(x.shape[axis] for axis in axes)
        if mask is None or self.options.padding == "include":
            numbers = [size] * len(steps)
        else:  # on the host: that waits for a GPU, but spares most time steps most of what follows
            numbers = mask.sum(axes).reshape(-1).tolist()
        enough = [span is None or number >= self.options.min_examples for number in numbers]
        if not any(enough):
            return self._by_running(x, span)
        share = None
        if mask is not None and min(numbers) < size:
            real = mask.to(x.dtype).unsqueeze(-1)
            share = real / real.sum(axes, keepdim=True).clamp(min=1)

        mean = _mean(x, share, axes)
        centred = x - mean
        var = _mean(centred.square(), share, axes)
        if self.training:
            unbiased = [number / max(number - 1, 1) for number in ([len(x)] if self.maps else numbers)]
            self._update(span, mean.detach(), var.detach(), unbiased, enough)
        if all(enough):
            return centred, var
        chosen, known = torch.tensor(enough, device=x.device).unsqueeze(-1), self._by_running(x, span)
        return torch.where(chosen, centred, known[0]), torch.where(chosen, var, known[1])

    @torch.no_grad()
    def _update(
        self, span: range | None, mean: Tensor, var: Tensor, unbiased: Sequence[float], enough: Sequence[bool]
    ) -> None:
        steps, momentum = span or range(1), self.options.momentum
        rows, shape = slice(steps.start, steps.stop), (len(steps), -1)
        weights = [momentum]
        if span is not None:
            counts = self.count[rows].tolist()
            weights = [new * (momentum if count else 1.0) for new, count in zip(enough, counts, strict=True)]
        weight, factor = self.running_mean.new_tensor([weights, unbiased]).unsqueeze(-1)
        self.running_mean[rows].lerp_(mean.to(weight.dtype).view(shape), weight)
        self.running_var[rows].lerp_(var.to(weight.dtype).view(shape) * factor, weight)
        self.count[rows] += weight.squeeze(-1) > 0

    def _grow(self, steps: int) -> None:
        missing = steps - len(self.count)
        if missing > 0:
            mean, var = self.running_mean, self.running_var
            self.running_mean = torch.cat([mean, mean.new_zeros(missing, mean.shape[1])])
            self.running_var = torch.cat([var, var.new_ones(missing, var.shape[1])])
            self.count = torch.cat([self.count, self.count.new_zeros(missing)])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("running_mean", "running_var", "count"):  # as many steps as the saved run had seen
            saved = state_dict.get(prefix + name)
            if saved is not None:
                setattr(self, name, torch.empty_like(saved, device=self.count.device))
        super()._load_from_state_dict(state_dict, prefix, *args)


def _mean(x: Tensor, share: Tensor | None, axes: tuple[int, ...]) -> Tensor:
    return x.mean(axes, keepdim=True) if share is None else (x * share).sum(axes, keepdim=True)


@contextmanager
def other_statistics(model: nn.Module) -> Iterator[str | None]:
    """Inside, a model's batch norms evaluate with the statistics that they do not take by their options.

    Yields which those are, "batch" or "running", or None for a model without batch norm.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, BatchNorm)]
    chosen = [layer.statistics for layer in layers]
    other = next((statistics for statistics in STATISTICS if chosen and statistics not in chosen), None)
    try:
        for layer in layers:
            layer.statistics = other or layer.statistics
        yield other
    finally:
        for layer, statistics in zip(layers, chosen, strict=True):
            layer.statistics = statistics


class MeanOnlyBatchNorm(BatchNorm):
    """``y = x - mean + bias``: centring over the batch, for weight-normalised maps, whose gain is in the weight."""

    gain = False

    def __init__(
        self, features: int, *, shift: bool = True, maps: bool = False, options: BatchNormOptions | None = None
    ) -> None:
        super().__init__(features, shift=shift, maps=maps, options=options)

    def scale(self, var: Tensor) -> None:  # noqa: ARG002
        return None
