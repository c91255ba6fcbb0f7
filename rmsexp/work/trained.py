"""Load the task and the model of a trained run."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rmsexp import config, tasks
from rmsexp.records import record
from rmsexp.records.states import Past
from rmsexp.system.readers import read_yaml
from rmsexp.train import checkpoint
from rmsexp.train.device import available
from rmsexp.train.step import depending_on_step


def load(
    folder: Path, kind: type, device: torch.device, report: Callable[[str], None], *, which: str = "best"
) -> tuple[Any, Any, int]:
    """Return the task, the model in evaluation mode and the step of its checkpoint, of the run in ``folder``.

    ``kind``: the class that the task must have. ``report`` prints a line about preprocessing that takes long.
    ``which``: the checkpoint, "best" or "last".

    Raises: config.ConfigError if the folder holds no run of such a task; ValueError if a file of its record is damaged;
    checkpoint.CheckpointError if the checkpoint is missing, damaged or of another run; data.DataError or ValueError
    if the data are missing or have changed; ValueError if ``device`` is not available.
    """
    available(device)
    files = record.RunFolder(folder)
    cfg, norm = config.read(files.config_path)
    task_class = tasks.task_class(cfg.task, cfg._target_)
    if not issubclass(task_class, kind):
        raise config.ConfigError(f"{folder} is a run of task={cfg.task}, for which this command does not work")
    run = files.read_run()
    past = Past(files, None, run, None)
    task = task_class(cfg, device)
    past.refuse_other(data=task.dataset.digest)
    task.prepare(report)
    past.refuse_other(task.notes)
    model = task.build(norm)
    identity = checkpoint.Identity(cfg.seed, config.digest(read_yaml(files.config_path)), run["dataset"]["digest"])
    path = files.checkpoints / f"{which}.pt"
    payload = checkpoint.read(path, identity)
    try:
        model.load_state_dict(payload["model"])
        step = int(payload["step"] if "step" in payload else payload["state"]["step"])
    except Exception as error:  # what does not fit raises many types of exceptions
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 160)
        raise checkpoint.CheckpointError(f"{path} does not fit the run's config.yaml ({reason})") from None
    for layer in depending_on_step(model):
        layer.set_step(step)
    return task, model.eval(), step
