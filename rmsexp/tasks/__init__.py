"""One module per task, named after the task: its config schema, data, model, objective, metrics and target.

The schema is the class ``Config``, whose field ``schedule`` is the learning rate's schedule. The task is the class
``Task``, which follows :class:`rmsexp.train.task.Task` and is constructed from the task's config and a device. The
module ``translation`` is not a task; it has what ``rnnsearch`` and ``transformer`` share.
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
    """Return the task of a job, with its data set opened or downloaded.

    :meth:`rmsexp.train.task.Task.prepare`, which the caller must call next, preprocesses the data.

    Raises: DataError if the data set is missing or damaged; ValueError if the config does not fit the data set.
    """
    task: Task = task_class(job.config.task)(job.config, device)
    return task
