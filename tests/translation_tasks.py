"""Translation tasks made small, and what a command did: shared by the tests of tasks, runs and commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rmsexp import config
from rmsexp.train.randomness import StreamNoise, stream

NORMS = config.options("norm")
TASKS = ("rnnsearch", "transformer")
TRAIN = 310  # pairs, as conftest has it
SIZES = {
    "rnnsearch": ("model.embedding=8", "model.hidden=12", "batch_size=20", "pool=3"),
    "transformer": (
        *("model.width=16", "model.layers=1", "model.inner=16", "model.heads=2"),
        *("tokens=200", "pool=100", "accumulate=2"),
    ),
}
SHORT = ("data.max_length=16", "data.overlong=drop")  # where all of the text takes a recurrence too long
SEARCH = ("decoding.max_length=6", "decoding.beyond_source=2", "decoding.beam=2")


def tiny(task: str) -> list[str]:
    return [f"task={task}", *SIZES[task], *SEARCH]


def make(root: Path, task: str, *overrides: str) -> tuple[Any, Any]:
    """A task with its data, and its model, initialised."""
    job = config.job([*tiny(task), f"data.root={root}", *overrides])
    made = import_module(f"rmsexp.tasks.{task}").Task(job.config, torch.device("cpu"))
    made.prepare(lambda _: None)
    model = made.build(job.norm)
    made.initialise(model)
    return made, model


@dataclass(frozen=True)
class Ended:
    """What a command left: exit status, everything printed."""

    status: int
    out: str
    err: str


Main = Callable[..., Ended]


def shake(model: nn.Module) -> None:
    """Weights with which translations differ from each other."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            parameter.add_(torch.empty(parameter.shape).normal_(0, 1, generator=stream(0, "shake", name)))


def train(task: Any, model: nn.Module, number: int) -> None:
    optimizer = task.optimizer(model)
    for step in range(number):
        for micro, batch in enumerate(task.batches(step)):
            task.objective(model, batch, StreamNoise(0, "noise", step, micro)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
