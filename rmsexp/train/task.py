"""What the trainer knows of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rmsexp.models.noise import Noise


@dataclass(frozen=True)
class Dataset:
    """What a run was trained on. ``builtin``: made by this package. ``digest``: of its content."""

    name: str
    digest: str
    builtin: bool


@dataclass(frozen=True)
class Target:
    """The metric that tells how good a run is. ``selection``: the split that "best" is chosen on."""

    split: str
    metric: str
    mode: str  # "min" or "max"
    selection: str
    loss_unit: str = "nats"


@dataclass(frozen=True)
class Objective:
    """``loss``: a scalar to go down. ``sums``: metrics (``loss`` among them) summed over ``count`` predictions."""

    loss: Tensor
    sums: Mapping[str, Tensor]
    count: int


class Task(Protocol):
    """A task is made from its config and a device, which finds its data.

    ``notes``: what a reader of its metrics must know, for the record. ``files``: text that the last evaluation made for
    the run's folder, by file name.
    """

    dataset: Dataset
    target: Target
    steps_per_epoch: float
    notes: Mapping[str, str]
    files: Mapping[str, str]

    def prepare(self, report: Callable[[str], None]) -> None:
        """Preprocesses the data, or takes them from the cache; ``report`` is told of what takes long."""

    def build(self, norm: Any) -> nn.Module:
        """The model, on the device, its weights still without values."""

    def initialise(self, model: nn.Module) -> None:
        """Draws the initial weights, and takes from data what a recipe initialises so; before step 0 only."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimiser that the recipe asks for."""

    def batches(self, step: int) -> Sequence[Any]:
        """The micro-batches of a training step (from 0), a function of the seed and the step."""

    def examples(self, batch: Any) -> int:
        """How many examples a micro-batch holds."""

    def objective(self, model: nn.Module, batch: Any, noise: Noise) -> Objective:
        """What is optimised on a micro-batch."""

    def evaluate(self, model: nn.Module) -> dict[str, dict[str, float]]:
        """The metrics of each evaluation split; the model is in evaluation mode."""
