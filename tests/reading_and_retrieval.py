"""The attentive reader and order-embedding made small: shared by the tests of their tasks and runs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from rmsexp import config

TASKS = ("attentive_reader", "order_embedding")
SIZES = {
    "attentive_reader": ("model.width=6", "batch_size=10"),
    "order_embedding": ("model.embedding=5", "model.hidden=6", "batch_size=9"),
}


def tiny(task: str) -> list[str]:
    return [f"task={task}", *SIZES[task]]


def make(task: str, *overrides: str) -> tuple[Any, Any]:
    """A task with its data, and its model, initialised."""
    job = config.job([*tiny(task), *overrides])
    made = import_module(f"rmsexp.tasks.{task}").Task(job.config, torch.device("cpu"))
    made.prepare(lambda _: None)
    model = made.build(job.norm)
    made.initialise(model)
    return made, model


def epoch(task: Any, number: int) -> range:
    """The steps of an epoch."""
    return range(number * int(task.steps_per_epoch), (number + 1) * int(task.steps_per_epoch))
