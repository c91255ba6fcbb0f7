"""One module per task, with the task's name: its config schema, data, model, objective, metrics and target.

The schema is the class ``Config``, whose field ``schedule`` is the learning rate's schedule. The task is the class
``Task``, which follows :class:`rmsexp.train.task.Task` and is constructed from the task's config and a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmsexp import config

if TYPE_CHECKING:
    import torch

    from rmsexp.train.task import Task


def task_class(name: str) -> Any:
    """Return the class ``Task`` of the task with this name.

    Raises: ConfigError if there is no such task.
    """
    return config.task_module(name).Task


def make(job: config.Job, device: torch.device) -> Task:
    """Return the task of a job. This opens its data set; :meth:`rmsexp.train.task.Task.prepare` preprocesses it.

    Raises: DataError if the data set is missing or damaged; ValueError if the config does not fit it.
    """
    task: Task = task_class(job.config.task)(job.config, device)
    return task
