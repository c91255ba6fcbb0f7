"""Load the task and the model of a trained run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rmsexp import config, record, tasks
from rmsexp.train import checkpoint


class Trained(NamedTuple):
    """A model in evaluation mode with its task. ``step``: the step at which its checkpoint was saved."""

    task: Any
    model: Any
    step: int


def load(
    folder: Path, kind: type, device: torch.device, report: Callable[[str], None], *, which: str = "best"
) -> Trained:
    """Return the task and the model of the run in ``folder``.

    ``kind``: the class that the task must have. ``report`` prints a line about preprocessing that takes long.
    ``which``: the checkpoint, "best" or "last".

    Raises: config.ConfigError if the folder holds no run of such a task; checkpoint.CheckpointError if the checkpoint
    is missing or damaged; data.DataError or ValueError if the data are missing or have changed.
    """
    files = record.RunFolder(folder)
    cfg, norm = config.read(files.config_path)
    task_class = tasks.task_class(cfg.task)
    if not issubclass(task_class, kind):
        raise config.ConfigError(f"{folder} is a run of task={cfg.task}, for which this command does not work")
    task = task_class(cfg, device)
    digest = record.read_json(files.run_path)["dataset"]["digest"]
    if task.dataset.digest != digest:
        raise ValueError(
            f"{folder} was trained on other data (digest {digest[:12]}, now {task.dataset.digest[:12]}); "
            "the files in its data.root have changed"
        )
    task.prepare(report)
    model = task.build(norm)
    payload = checkpoint.read(files.checkpoints / f"{which}.pt")
    model.load_state_dict(payload["model"])
    step = payload["step"] if which == "best" else payload["state"]["step"]
    return Trained(task, model.eval(), step)
