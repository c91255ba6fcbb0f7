"""One module per task, named after the task: its config schema, data, model, objective, metrics and target.

The schema is the class ``Config``. The task is the class ``Task``, which follows the protocol :class:`Task` of this
package and is constructed from the task's config and a device. The module ``translation`` is not a task; it has what
``rnnsearch`` and ``transformer`` share. A task outside of this package is a module of the same form, whose class the
task's config names under ``_target_`` (docs/extending.md).
"""

from typing import Any

import torch
from torch import nn

from rmsexp import config
from rmsexp.config.classes import task_class as task_class
from rmsexp.models.recurrent import Recurrence
from rmsexp.norms.batch import BatchNormOptions
from rmsexp.task import ALL as ALL
from rmsexp.task import WHOLE as WHOLE
from rmsexp.task import Dataset as Dataset
from rmsexp.task import Extent as Extent
from rmsexp.task import MicroBatches as MicroBatches
from rmsexp.task import Objective as Objective
from rmsexp.task import Target as Target
from rmsexp.task import Task as Task
from rmsexp.task import lacking


def make(job: config.Job, device: torch.device) -> Any:
    """Return the task of a job, with its data set opened or downloaded.

    :meth:`Task.prepare`, which the caller must call next, preprocesses the data.

    Raises: DataError if the data set is missing or damaged; ValueError if the config does not fit the data set;
    ConfigError if the task's class or config lacks a member of the protocol.
    """
    task = task_class(job.config.task, job.config._target_)(job.config, device)
    missing = lacking(task, job.config)
    if missing is not None:
        raise config.ConfigError(f"task={job.config.task}: {missing}; rmsexp.tasks.Task describes it")
    return task


def build(task: Task, job: config.Job) -> nn.Module:
    """Return a new model of a job's task, with weights that are not drawn yet.

    Raises: ValueError if the norm, or one of its options, does not fit the task's model or its batches.
    """
    model = task.build(job.norm)
    job.norm.check_effect(model)
    (key, parts), size = job.config.parts, getattr(job.config, "batch_size", None)
    is_recurrent = any(isinstance(layer, Recurrence) for layer in model.modules())
    # a smaller micro-batch would be normalised by the running statistics, which then never change
    for norm in (job.norm, *job.norm.parts) if is_recurrent and size is not None else ():
        if isinstance(norm, BatchNormOptions) and size // parts < norm.min_examples:
            raise ValueError(
                f"in recurrences norm={norm.name} needs norm.min_examples={norm.min_examples} examples in each "
                f"micro-batch, and batch_size={size} with {key}={parts} gives {size // parts}; change one of these"
            )
    return model
