"""Batch normalisation (Ioffe & Szegedy 2015), per time step inside recurrences (Cooijmans et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor, mask: Tensor | None = None, steps: int | range | None = None) -> Tensor:
        """See :meth:`Normaliser.forward`; ``x`` is ``(batch, n)``, ``(batch, time, n)`` or maps."""
        wide = x.float() if x.dtype in REDUCED else x
        span = range(steps, steps + 1) if isinstance(steps, int) else steps
        if self.training or self.statistics == "batch":
            mean, var, examples = self._batch_statistics(wide, mask, apart=span is not None)
            if self.training:
                self._update(span, mean.detach(), var.detach(), examples)
            if span is not None:
                enough = (examples >= self.options.min_examples).unsqueeze(-1)
                known = self._running(span)
                mean, var = torch.where(enough, mean, known[0]), torch.where(enough, var, known[1])
        else:
            mean, var = self._running(span)
        if self.maps:
            mean, var = mean.view(-1, 1, 1), var.view(-1, 1, 1)
        gain, shift = self.broadcast(self.weight), self.broadcast(self.bias)
        return affine(wide - mean, self.scale(var), gain, shift, fold=True).to(x.dtype)

    def scale(self, var: Tensor) -> Tensor | None:
        return torch.rsqrt(var + self.eps)

    def _batch_statistics(self, x: Tensor, mask: Tensor | None, apart: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and biased variance ``(steps, n)``, and the number of real examples ``(steps,)`` behind them.

        Without ``apart`` there is one step. Its number of examples is that of the unbiased variance.
        """
        if self.options.padding == "include":
            mask = None
        axes = (0, 2, 3) if self.maps else (0,) if apart else tuple(range(x.dim() - 1))
        if mask is None:
            size = x.shape[0] if self.maps or apart else x[..., 0].numel()
            examples = torch.full((x.shape[1] if apart and x.dim() == 3 else 1,), size, device=x.device)
            mean = x.mean(axes, keepdim=True)
            var = (x - mean).square().mean(axes)
        else:
            real = mask.to(x.dtype).unsqueeze(-1)
            examples = mask.sum(axes).reshape(-1)
            total = examples.clamp(min=1).to(x.dtype).unsqueeze(-1)
            mean = (x * real).sum(axes, keepdim=True) / total
            var = ((x - mean) * real).square().sum(axes) / total
        features = x.shape[1] if self.maps else x.shape[-1]
        return mean.reshape(-1, features), var.reshape(-1, features), examples

    @torch.no_grad()
    def _update(self, span: range | None, mean: Tensor, var: Tensor, examples: Tensor) -> None:
        number = examples.to(var.dtype)
        unbiased = var * (number / (number - 1).clamp(min=1)).unsqueeze(-1)
        mean, unbiased = mean.to(self.running_mean.dtype), unbiased.to(self.running_var.dtype)
        if span is None:
            self.running_mean.lerp_(mean, self.options.momentum)
            self.running_var.lerp_(unbiased, self.options.momentum)
            self.count += 1
            return
        self._grow(span.stop)
        rows = slice(span.start, span.stop, span.step)
        enough = examples >= self.options.min_examples
        weight = (torch.where(self.count[rows] == 0, 1.0, self.options.momentum) * enough).to(mean.dtype).unsqueeze(-1)
        self.running_mean[rows] = torch.lerp(self.running_mean[rows], mean, weight)
        self.running_var[rows] = torch.lerp(self.running_var[rows], unbiased, weight)
        self.count[rows] += enough

    def _running(self, span: range | None) -> tuple[Tensor, Tensor]:
        """Running mean and variance, ``(steps, n)``; a step that has none takes those of the last one before it."""
        if span is None:
            return self.running_mean, self.running_var
        here = torch.arange(len(self.count), device=self.count.device)
        last = torch.where(self.count > 0, here, 0).cummax(0).values
        wanted = torch.as_tensor(span, device=last.device).clamp(max=len(last) - 1)
        return self.running_mean[last[wanted]], self.running_var[last[wanted]]

    def _grow(self, steps: int) -> None:
        missing = steps - len(self.count)
        if missing > 0:
            self.running_mean = torch.cat(
                [self.running_mean, self.running_mean.new_zeros(missing, self.running_mean.shape[1])]
            )
            self.running_var = torch.cat(
                [self.running_var, self.running_var.new_ones(missing, self.running_var.shape[1])]
            )
            self.count = torch.cat([self.count, self.count.new_zeros(missing)])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("running_mean", "running_var", "count"):  # as many steps as the saved run had seen
            saved = state_dict.get(prefix + name)
            if saved is not None:
                setattr(self, name, torch.empty_like(saved, device=self.count.device))
        super()._load_from_state_dict(state_dict, prefix, *args)


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
