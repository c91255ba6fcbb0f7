"""The interface between the trainer and a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rmsexp.models.noise import Noise
from rmsexp.rules import score
from rmsexp.rules.quantities import Quantity


@dataclass(frozen=True)
class Dataset:
    """A data set. ``digest``: a digest of its content. ``builtin``: whether this package generates the data."""

    name: str
    digest: str
    builtin: bool


@dataclass(frozen=True)
class Target:
    """The metric by which runs are compared, and its split.

    ``mode``: whether the smallest ("min") or largest ("max") value is best. ``selection``: the split on which the best
    model of a run is chosen by this metric.
    """

    split: str
    metric: str
    mode: str
    selection: str


@dataclass(frozen=True)
class Extent:
    """What an evaluation covers.

    ``examples``: number of validation examples, the first ones, that are evaluated with greedy search; None: all, with
    the search of the config. ``test``: whether test splits are evaluated, too.
    """

    examples: int | None = None
    test: bool = True

    @property
    def valid(self) -> str:
        """Return the name of the validation split in the results: "interim" if only a part of it is evaluated."""
        return "valid" if self.examples is None else score.INTERIM


ALL = slice(None)  # all micro-batches of a step
WHOLE = Extent()
INTERIM = Extent(score.INTERIM_EXAMPLES, test=False)


@dataclass(frozen=True)
class Objective:
    """The objective of a micro-batch: ``loss``, the scalar to be minimised.

    ``sums``: each metric, including "loss", summed over ``count`` predictions. The metric "loss" may differ from the
    objective, for example by having no label smoothing.
    """

    loss: Tensor
    sums: Mapping[str, Tensor]
    count: int


class MicroBatches(list[Any]):
    """All or some micro-batches of a step, and the ``weights`` of all of them, in order.

    The objective of the step is the mean of the micro-batches' objectives, weighted so.
    """

    def __init__(self, batches: Iterable[Any], weights: Sequence[int]) -> None:
        super().__init__(batches)
        self.weights = weights


class Task(Protocol):
    """Interface of tasks. A task is constructed from its config and a device, which also opens its data set.

    ``predictions``: what the loss is averaged over (:attr:`Objective.count`), in the plural, such as tokens; progress
    shows their number per second. ``quantities``: what reports draw and tabulate against steps and time, in this order.
    ``notes``: remarks on the metrics, for the record. ``files``: texts from the last evaluation that are written to the
    run's folder, by file name.
    """

    dataset: Dataset
    target: Target
    predictions: str
    quantities: Sequence[Quantity]
    steps_per_epoch: float
    notes: Mapping[str, str]
    files: Mapping[str, str]

    def prepare(self, report: Callable[[str], None]) -> None:
        """Preprocess the data or load them from the cache. ``report`` prints a line. Call this before other methods."""

    def build(self, norm: Any) -> nn.Module:
        """Return the model, on the device; :meth:`initialise` draws its weights."""

    def initialise(self, model: nn.Module) -> None:
        """Draw the initial weights, and compute those that are initialised from data. Called only before step 0."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimiser that the task's config describes."""

    def batches(self, step: int, chosen: slice = ALL) -> MicroBatches:
        """Return the ``chosen`` micro-batches of a training step (from 0), a function of the seed and the step."""

    def examples(self, batch: Any) -> int:
        """Return the number of examples in a micro-batch."""

    def objective(self, model: nn.Module, batch: Any, noise: Noise) -> Objective:
        """Return the objective of a micro-batch."""

    def evaluate(self, model: nn.Module, extent: Extent = WHOLE) -> dict[str, dict[str, float]]:
        """Return the metrics of each evaluated split, by name. The caller puts the model into evaluation mode."""


@runtime_checkable
class CoupledTask(Protocol):
    """A task whose loss compares the examples of a batch with each other, so micro-batches have no loss of their own.

    ``objective(model, batch, noise)`` of such a task is ``coupled(*embed(model, batch))``.
    """

    def embed(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        """Return what the loss takes of a micro-batch: tensors with a row per example."""

    def coupled(self, *rows: Tensor) -> Objective:
        """Return the objective of a whole batch, given the tensors of :meth:`embed`, joined in the batch's order."""
