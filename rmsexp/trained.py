"""A run that has been trained, loaded again: its task and its model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rmsexp import config, record, tasks
from rmsexp.train import checkpoint


class Trained(NamedTuple):
    """``step``: of the checkpoint that the model, in evaluation mode, was loaded from."""

    task: Any
    model: Any
    step: int


def load(
    folder: Path, kind: type, device: torch.device, report: Callable[[str], None], *, which: str = "best"
) -> Trained:
    """The task, which must be of this kind, and the model of the run in ``folder``; ``which`` checkpoint: best or last.

    Raises: config.ConfigError if it is no folder of such a run; checkpoint.CheckpointError; data.DataError and
    ValueError if its data are not there as they were.
    """
    files = record.RunFolder(folder)
    cfg, norm = config.read(files.config_path)
    task_class = tasks.task_class(cfg.task)
    if not issubclass(task_class, kind):
        raise config.ConfigError(f"{folder} is a run of task={cfg.task}, which this command is not for")
    task = task_class(cfg, device)
    known = record.read_json(files.run_path)["dataset"]["digest"]
    if task.dataset.digest != known:
        raise ValueError(
            f"{folder} was trained on other data (digest {known[:12]}, now {task.dataset.digest[:12]}); "
            "its data.root no longer holds them"
        )
    task.prepare(report)
    model = task.build(norm)
    payload = checkpoint.read(files.checkpoints / f"{which}.pt")
    model.load_state_dict(payload["model"])
    step = payload["step"] if which == "best" else payload["state"]["step"]
    return Trained(task, model.eval(), step)
