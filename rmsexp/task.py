"""The interface between the trainer and a task."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from rmsexp.config import score
from rmsexp.rules.quantities import Quantity
from rmsexp.system.command_line import ReportedError

T = TypeVar("T")


class Noise(Protocol):
    """A source of random noise for one forward pass; runs with different norms get the same noise.

    In evaluation a model gets None instead and applies no noise.
    """

    def gaussian(self, x: Tensor, std: float) -> Tensor:
        """Return ``x`` plus normal noise of mean 0 and standard deviation ``std``."""

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Return ``x`` with each element set to 0 with probability ``p``, and divided by ``1 - p`` otherwise."""

    def seed_default(self, device: torch.device) -> None:
        """Seed torch's default generator on ``device``, which the dropout inside torch's attention draws from."""


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
    model of a run is chosen by this metric. ``chance``: the metric of a model that has learnt nothing, such as 0.9 for
    the error with ten classes; None: not known. Two norms that are both near ``chance``, or worse, are not compared.
    """

    split: str
    metric: str
    mode: str
    selection: str
    chance: float | None = None


@dataclass(frozen=True)
class Extent:
    """What an evaluation covers.

    ``examples``: number of validation examples, the first ones, that are evaluated, in translation with greedy search;
    None: all, with the search of the config. ``test``: whether test splits are evaluated, too.
    """

    examples: int | None = None
    test: bool = True

    @property
    def split(self) -> str:
        """Return the name of the validation split in the results: "valid_sample" if only a part of it is evaluated."""
        return "valid" if self.examples is None else score.SAMPLE


ALL = slice(None)  # all micro-batches of a step
WHOLE = Extent()
SAMPLE = Extent(score.SAMPLE_EXAMPLES, test=False)


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
    """All or some micro-batches of a step. ``weights``: of all micro-batches of the step, in order, listed here or not.

    The objective of the step is the mean of all its micro-batches' objectives with these weights. That of a micro-batch
    of weight 0, for example without predictions, must be finite.
    """

    def __init__(self, batches: Iterable[Any], weights: Sequence[int]) -> None:
        super().__init__(batches)
        self.weights = weights


class Task(Protocol):
    """Interface of tasks. A task is constructed from its config and a device, which also opens its data set.

    The config is of the class ``Config`` in the module of the task's class, a dataclass derived from
    :class:`rmsexp.config.RunConfig`. Its key ``optim`` has ``lr``, the learning rate; ``clip``, the limit for clipping
    of gradients, or None; and ``clipping``, how they are clipped, a key of :data:`rmsexp.train.optim.CLIPPING`. Its key
    ``schedule`` has the number of ``steps``, and a method ``at(step)`` that returns by name the values of the
    optimiser's groups at a step (from 0); ``lr`` is a factor on the learning rate. All other keys are the task's own.

    A class may derive from this one: then ``notes`` and ``files`` are empty, and :meth:`prepare` does nothing, unless
    it defines them.

    ``dataset``: the data set; a continued run must have the same digest. ``target``: the metric that compares runs.
    ``predictions``: what the loss is averaged over (:attr:`Objective.count`), in the plural, such as tokens; progress
    shows their number per second. ``quantities``: what reports draw and tabulate against steps and time, in this order;
    :mod:`rmsexp.rules.quantities` has functions for losses and errors. ``steps_per_epoch``: number of steps in which
    training sees as many examples as the training set has. ``notes``: remarks on the metrics, by name, for the record.
    The notes named ``rmsexp.records.record.SUBWORDS`` and ``WORDS``, digests of learnt subwords and of the vocabulary,
    must not change when a run is continued. ``files``: contents from the last evaluation, by file name, for the run's
    folder.
    """

    dataset: Dataset
    target: Target
    predictions: str
    quantities: Sequence[Quantity]
    steps_per_epoch: float
    notes: Mapping[str, str] = {}
    files: Mapping[str, str | bytes] = {}

    def prepare(self, report: Callable[[str], None]) -> None:
        """Preprocess the data or load them from the cache. ``report`` prints a line. Call this before other methods."""

    def build(self, norm: Any) -> nn.Module:
        """Return the model, on the device; :meth:`initialise` draws its weights.

        ``norm``: a :class:`rmsexp.norms.Norm`, which the model asks for its layers. ``norm.linear("hidden1", 2, 64)``
        is a normalised linear layer from 2 to 64 features; messages show its name, which is the task's choice.
        """

    def initialise(self, model: nn.Module) -> None:
        """Draw the initial weights, and compute those that are initialised from data. Called only before step 0.

        :func:`rmsexp.models.init.initialise` draws each weight from a random stream of its own, which depends on the
        seed and on the weight's name in the model, and so not on the norm.
        """

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimiser that the task's config describes."""

    def batches(self, step: int, chosen: slice = ALL) -> MicroBatches:
        """Return the ``chosen`` micro-batches of a training step (from 0), a function of the seed and the step.

        The step's batch is cut into ``config.micro_batches`` parts, by default 1. An interrupted run continues bit for
        bit because nothing else decides the batches; :mod:`rmsexp.train.randomness` has random numbers of that kind.
        """

    def examples(self, batch: Any) -> int:
        """Return the number of examples in a micro-batch."""

    def objective(self, model: nn.Module, batch: Any, noise: Noise) -> Objective:
        """Return the objective of a micro-batch. ``noise``: the random numbers of the step, such as for dropout."""

    def evaluate(self, model: nn.Module, extent: Extent = WHOLE) -> dict[str, dict[str, float]]:
        """Return the metrics of each evaluated split, by name. The caller puts the model into evaluation mode.

        With WHOLE, the splits of ``target`` are among them, and their metrics have ``target.metric``. The validation
        split is named ``extent.split`` in the result, and its first ``extent.examples`` examples are evaluated.
        """


OPTIONAL = ("notes", "files", "prepare")  # members of Task that a derived class need not define


def lacking(task: Task, config: Any) -> str | None:
    """Return a text that names the first member of :class:`Task`, or key of its config, that is missing; or None."""
    methods = [name for name, value in vars(Task).items() if inspect.isfunction(value) and name[0] != "_"]
    for name in (*Task.__annotations__, *methods):
        # not getattr, because a property such as steps_per_epoch may need what ``prepare`` reads
        declared = None if name in OPTIONAL else vars(Task).get(name)
        if inspect.getattr_static(task, name, None) in (None, declared):
            return f"{type(task).__module__}.{type(task).__name__} lacks {name}"
    for key, names in (("optim", ("lr", "clip", "clipping")), ("schedule", ("steps", "at"))):
        missing = [name for name in names if not hasattr(getattr(config, key, None), name)]
        if missing:
            return f"its Config lacks {key}.{missing[0]}"
    return None


class TaskError(ReportedError, ValueError):
    """A task does not do what :class:`Task` describes."""


def checked(value: T, kind: type[T], member: str) -> T:
    """Return ``value``, the result of a task's method ``member``. Raises: TaskError if it is not a ``kind``."""
    if not isinstance(value, kind):
        returned = f"{type(value).__name__}; rmsexp.tasks.Task describes it"
        raise TaskError(f"the task's {member} must return {kind.__name__}, but returned {returned}")
    return value


def target_value(results: Mapping[str, Mapping[str, float]], target: Target) -> float | None:
    """Return the target's metric on the selection split; None if this split was not evaluated.

    Raises: TaskError if the split lacks the metric.
    """
    metrics = results.get(target.selection)
    if metrics is not None and target.metric not in metrics:
        found = f"for split {target.selection} its evaluate returned only {', '.join(metrics)}"
        raise TaskError(f"the task's target is the metric {target.metric}, but {found}")
    return None if metrics is None else metrics[target.metric]


@runtime_checkable
class CoupledTask(Protocol):
    """A task whose loss compares the examples of a batch with each other, so micro-batches have no loss of their own.

    Its ``objective(model, batch, noise)`` is ``coupled(*embed(model, batch))``; weights are numbers of examples.
    """

    def embed(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        """Return the inputs of the loss that come from a micro-batch: tensors with a row per example."""

    def coupled(self, *rows: Tensor) -> Objective:
        """Return the objective of a whole batch, given the tensors of :meth:`embed`, joined in the batch's order."""
