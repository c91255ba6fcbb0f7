"""One training step, for the training loop and for step timing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from rmsexp.train import evaluations
from rmsexp.train.evaluations import Evaluations
from rmsexp.train.optim import CLIPPING
from rmsexp.train.randomness import StreamNoise
from rmsexp.train.task import Task

WARMUP_STEPS = 3  # number of steps before training or timing that are excluded from the measured times

Batches = Sequence[Any]  # the micro-batches of a step
Part = Callable[[str], AbstractContextManager[object]]  # from the name of a part to a context in which the part runs


class Schedule(Protocol):
    def at(self, step: int) -> dict[str, float]:
        """Return by name the values of the optimiser's groups at a step (from 0); ``lr`` is a factor on the rate."""


@dataclass(frozen=True)
class Settings:
    """The values of a config that the training step and the training loop need."""

    seed: int
    lr: float
    clip: float | None
    clipping: str
    max_steps: int
    log_every: int
    evaluations: Evaluations
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

    ``values``, on the device, ``(len(metrics) + 2,)``: the objective (mean over the micro-batches), the sum of each
    metric in ``metrics``, and the norm of the gradient before clipping. ``predictions``: the number of predictions in
    each sum.
    """

    values: Tensor
    metrics: list[str]
    predictions: int


class Stepper:
    """A model with its task, optimiser and schedule, and the training step."""

    def __init__(
        self, task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule, settings: Settings
    ) -> None:
        self.task, self.model, self.optimizer = task, model, optimizer
        self.schedule, self.settings = schedule, settings

    def take(self, step: int, batches: Batches, part: Part = nullcontext) -> StepResult:
        """Do one training step on its micro-batches; the parts forward, backward and update run in ``part(name)``."""
        for group in self.optimizer.param_groups:
            rates = self.schedule.at(step)
            group.update(rates | {"lr": self.settings.lr * rates["lr"]})
        totals, count, metrics = None, 0, list[str]()
        for micro, batch in enumerate(batches):
            with part("forward"):
                noise = StreamNoise(self.settings.seed, "noise", step, micro, device=self.settings.device)
                with autocast(self.settings.precision, self.settings.device):
                    objective = self.task.objective(self.model, batch, noise)
                loss = objective.loss / len(batches)
            with part("backward"):
                loss.backward()
            values = torch.stack([value.detach().float() for value in (loss, *objective.sums.values())])
            totals = values if totals is None else totals + values
            count += objective.count
            metrics = list(objective.sums)
        assert totals is not None
        with part("update"):
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            norm = nn.utils.get_total_norm(gradients)
            if self.settings.clip is not None:
                CLIPPING[self.settings.clipping](gradients, self.settings.clip, norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return StepResult(torch.cat([totals, norm.reshape(1)]), metrics, count)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which the model computes in float32, or with autocast to bfloat16."""
    return nullcontext() if precision == "float32" else torch.autocast(device.type, dtype=torch.bfloat16)


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
