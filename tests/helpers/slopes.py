"""A tiny task for tests of the training loop: the gradients of its steps are chosen."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from rmsexp.records import record
from rmsexp.rules.quantities import loss
from rmsexp.task import WHOLE, Dataset, Extent, MicroBatches, Noise, Objective, Target
from rmsexp.train.checkpoint import Identity
from rmsexp.train.contention import Contention
from rmsexp.train.loop import Trainer, restore
from rmsexp.train.progress import Failures, ProgressDisplay
from rmsexp.train.schedule import Constant
from rmsexp.train.step import Stepper
from rmsexp.train.writer import Writer

CPU, IDENTITY = torch.device("cpu"), Identity(0, "slopes", "slopes")
SLOPES = [[[1.0, 2.0, 3.0]], [[3.0, 2.0, 1.0]], [[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]]  # of four steps


class Slopes:
    """A task whose objective is a linear layer's output: its gradient with respect to the weight is the batch."""

    dataset, target = Dataset("slopes", "", True), Target("test", "loss", "min", "test")
    predictions = "slopes"
    quantities = (loss("test"),)
    steps_per_epoch = 1.0
    notes: Mapping[str, str] = {}
    files: Mapping[str, str] = {}

    def __init__(self, steps: list[list[list[float]]]) -> None:
        self.steps = torch.tensor(steps)

    def initialise(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1.0)

    def batches(self, step: int) -> MicroBatches:
        return MicroBatches(self.steps[step], [1] * len(self.steps[step]))

    def examples(self, batch: Tensor) -> int:  # noqa: ARG002
        return 1

    def objective(self, model: nn.Module, batch: Tensor, noise: Noise) -> Objective:  # noqa: ARG002
        loss = model(batch).sum()
        return Objective(loss, {"loss": loss}, 1)

    def evaluate(self, model: nn.Module, extent: Extent = WHOLE) -> dict[str, dict[str, float]]:  # noqa: ARG002
        return {"test": {"loss": 0.0}}


def slopes_trainer(
    slopes: list[list[list[float]]],
    folder: Path,
    model: nn.Linear,
    *,
    clip: float | None = None,
    clipping: str = "global",
    display: Any = None,
    pauses: bool = False,
) -> tuple[Trainer, record.RunFolder]:
    """Return a trainer of ``model`` by gradient descent with rate 1, and its folder, which may hold a checkpoint.

    ``slopes``: the gradients of the weight, by step and micro-batch. ``display``: the progress display, or None for one
    on standard error.
    """
    folder.mkdir(exist_ok=True)
    intervals = {"log_every": 1, "eval_every": 10, "checkpoint_every": 10, "max_steps": len(slopes)}
    values = {"seed": 0, "evaluation": None, "precision": "float32", "reduce": "ordered", "compile": False}
    values |= {"schedule": Constant(10)}
    optim = SimpleNamespace(lr=1.0, clip=clip, clipping=clipping)
    task: Any = Slopes(slopes)
    stepper = Stepper(SimpleNamespace(**intervals, **values, optim=optim, monitor=False), task, model, CPU)
    files, contention = record.RunFolder(folder), Contention(CPU)
    display = display or ProgressDisplay("slopes", len(slopes))
    state, clock = restore(stepper, files, IDENTITY, None, display.report)
    writer = Writer(files, "slopes")
    writer.begin(IDENTITY, {}, {"sessions": [{"from_step": state.step}]}, contention.report(), Failures())
    return Trainer(stepper, state, clock, writer, contention=contention, display=display, pauses=pauses), files
