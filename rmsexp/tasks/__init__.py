"""One file per task: its schema (``Config``), data, model, objective, metrics and target. The file's name is its name.

A task's class is called ``Task`` and follows :class:`rmsexp.train.task.Task`. It is made from the task's config and a
device; ``config.schedule`` is the schedule of its learning rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmsexp import config

if TYPE_CHECKING:
    import torch

    from rmsexp.train.task import Task


def task_class(name: str) -> Any:
    """Return the class of the task with this name, which is called with the task's config and a device.

    Raises: ConfigError if there is no such task.
    """
    return config.task_module(name).Task


def make(job: config.Job, device: torch.device) -> Task:
    """Return the task of a job, with its data set loaded.

    Raises: DataError and ValueError if the data set is missing or damaged.
    """
    task: Task = task_class(job.config.task)(job.config, device)
    return task
