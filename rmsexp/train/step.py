"""One training step, for the training loop and for step timing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from rmsexp.task import CoupledTask, MicroBatches, Objective, Schedule, Task, checked
from rmsexp.train import evaluations
from rmsexp.train.evaluations import Every, Scored
from rmsexp.train.optim import CLIPPING
from rmsexp.train.randomness import StreamNoise
from rmsexp.train.running import RunningStatistics

WARMUP_STEPS = 3  # number of steps before training or timing that are excluded from the measured times

T = TypeVar("T")
Part = Callable[[str], AbstractContextManager[object]]  # from the name of a part to a context in which the part runs


@dataclass(frozen=True)
class Settings:
    """The values of a config that the training step and the training loop need."""

    seed: int
    lr: float
    clip: float | None
    clipping: str
    max_steps: int
    log_every: int
    evaluations: Every | Scored
    checkpoint_every: int
    precision: str
    device: torch.device

    @classmethod
    def of(cls, config: Any, device: torch.device) -> Settings:
        """Return the settings from a task's config, where ``lr``, ``clip`` and ``clipping`` are below ``optim``."""
        optim = config.optim
        values = {"lr": optim.lr, "clip": optim.clip, "clipping": optim.clipping, "device": device}
        values["evaluations"] = evaluations.of(config)
        names = [field.name for field in dataclasses.fields(cls) if field.name not in values]
        return cls(**values, **{name: getattr(config, name) for name in names})


class StepResult(NamedTuple):
    """The values of one step.

    ``values``, on the device, ``(len(metrics) + 2,)``: the objective, the sum of each metric in ``metrics``, and the
    norm of the gradient before clipping. ``predictions``: the number of predictions in each sum. ``examples``: the
    number of training examples.
    """

    values: Tensor
    metrics: list[str]
    predictions: int | Tensor
    examples: int | Tensor


class Sums:
    """Sums over the micro-batches of a step, which are added in their order; one object is used for all steps.

    ``values``: the loss, and each of ``metrics``. ``count``: predictions. ``examples``: training examples. The backward
    passes add up the gradients. ``shared``: whether several processes take the micro-batches of a step.
    """

    shared = False
    values: Tensor | None = None
    metrics: Sequence[str] = ()
    count: int | Tensor = 0
    examples: int | Tensor = 0
    number = 0  # of the step's micro-batches

    def begin(self, number: int) -> None:
        """Begin with a step of ``number`` micro-batches."""
        self.values, self.count, self.examples, self.number = None, 0, 0, number

    def numbered(self, own: Sequence[T]) -> Iterable[tuple[int, T]]:
        """Return what belongs to this process's micro-batches, with their numbers in the step."""
        return enumerate(own)

    def all(self, own: list[T]) -> list[T]:
        """Return what belongs to all micro-batches, given that of this process's micro-batches."""
        return own

    def add(self, micro: int, values: Tensor, objective: Objective, examples: int) -> None:  # noqa: ARG002
        """Add micro-batch number ``micro`` after its backward pass. ``values``: its share of :attr:`values`."""
        self.values = values if self.values is None else self.values + values
        self.metrics = list(objective.sums)
        self.count += objective.count
        self.examples += examples

    def finish(self) -> None:
        """Complete the sums, and the gradients of the parameters, after the last micro-batch."""


class Stepper:
    """A model with its task, optimiser and schedule, and the training step.

    ``sums``: adds up the micro-batches; by default, those of this process alone.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        settings: Settings,
        sums: Sums | None = None,
    ) -> None:
        self.task, self.model, self.optimizer = task, model, optimizer
        self.schedule, self.settings, self.sums = schedule, settings, sums or Sums()
        self._statistics = RunningStatistics(model)

    def take(self, step: int, batches: MicroBatches, part: Part = nullcontext) -> StepResult:
        """Do one training step on its micro-batches; the parts forward, backward and update run in ``part(name)``.

        The gradients of the micro-batches are added in their order. Each micro-batch is computed with the running
        statistics from before the step; those of all micro-batches then update them, in order.
        """
        for group in self.optimizer.param_groups:
            group.update(self.rates(step))
        is_coupled = len(batches.weights) > 1 and isinstance(self.task, CoupledTask)
        sums = self.sums
        sums.begin(len(batches.weights))
        if is_coupled:
            self._coupled(batches, part)
        else:
            self._separate(step, batches, part)
        with part("update"):
            sums.finish()
            assert sums.values is not None
            if self._statistics.modules:
                self._statistics.update(sums.all(self._statistics.release()))
            norm = self._update()
        values = torch.cat([sums.values, norm.reshape(1)])
        return StepResult(values, list(sums.metrics), sums.count, sums.examples)

    def rates(self, step: int) -> dict[str, float]:
        """Return the learning rate, ``lr``, and what else the schedule sets at a step, counted from 0."""
        rates = self.schedule.at(step)
        return rates | {"lr": self.settings.lr * rates["lr"]}

    def _update(self) -> Tensor:
        """Update the parameters and remove the gradients; return the norm of the gradient before clipping."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if self.settings.clip is not None:
            CLIPPING[self.settings.clipping](gradients, self.settings.clip, norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def _separate(self, step: int, batches: MicroBatches, part: Part) -> None:
        """Add up the gradients and the values of micro-batches, each of which has its own objective."""
        weights, held = batches.weights, len(batches.weights) > 1 or self.sums.shared
        for micro, batch in self.sums.numbered(batches):
            with part("forward"):
                with self._computing(), self._statistics.held(held):
                    noise = StreamNoise(self.settings.seed, "noise", step, micro, device=self.settings.device)
                    objective = self.task.objective(self.model, batch, noise)
                checked(objective, Objective, "objective")
                loss = objective.loss / (sum(weights) / weights[micro])
            with part("backward"):
                loss.backward()
            self.sums.add(micro, _values(loss, objective), objective, self.task.examples(batch))

    def _coupled(self, batches: MicroBatches, part: Part) -> None:
        """Add up the gradients of micro-batches whose objective is that of the whole batch."""
        task, embedded = self.task, []
        assert isinstance(task, CoupledTask)
        with part("forward"):
            for batch in batches:
                with self._computing(), self._statistics.held(True):
                    embedded.append(task.embed(self.model, batch))
            rows = self.sums.all([[tensor.detach() for tensor in tensors] for tensors in embedded])
            joined = [torch.cat(column).requires_grad_() for column in zip(*rows, strict=True)]
            with self._computing():
                objective = task.coupled(*joined)
        with part("backward"):
            of_rows = torch.autograd.grad(objective.loss, joined)
            gradients = [torch.split(gradient, list(batches.weights)) for gradient in of_rows]
            values = _values(objective.loss, objective)
            for micro, tensors in self.sums.numbered(embedded):
                torch.autograd.backward(tensors, [column[micro] for column in gradients])
                if micro > 0:  # the values are those of the whole batch
                    values, objective = torch.zeros_like(values), dataclasses.replace(objective, count=0)
                self.sums.add(micro, values, objective, batches.weights[micro])

    def _computing(self) -> AbstractContextManager[object]:
        return autocast(self.settings.precision, self.settings.device)


def _values(loss: Tensor, objective: Objective) -> Tensor:
    """Return the values that :class:`Sums` adds up. ``loss``: the micro-batch's share of the step's objective."""
    return torch.stack([value.detach().float() for value in (loss, *objective.sums.values())])


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which the model computes in float32, or with autocast to bfloat16."""
    return nullcontext() if precision == "float32" else torch.autocast(device.type, dtype=torch.bfloat16)


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
