"""A run that has been trained, loaded again: its task and its model."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from rmsexp import config, record
from rmsexp.train import checkpoint


class Trained(NamedTuple):
    """``step``: of the checkpoint that the model, in evaluation mode, was loaded from."""

    task: Any
    model: nn.Module
    step: int


def load(folder: Path, device: torch.device, report: Callable[[str], None], *, which: str = "best") -> Trained:
    """The task and the model of the run in ``folder``; ``which``: the "best" or the "last" checkpoint.

    Raises: config.ConfigError if it is no run's folder; checkpoint.CheckpointError; data.DataError and ValueError if
    its data are not there as they were.
    """
    cfg, norm = config.read(folder / record.CONFIG)
    task = import_module(f"rmsexp.tasks.{cfg.task}").Task(cfg, device)
    known = record.read_json(folder / record.RUN)["dataset"]["digest"]
    if task.dataset.digest != known:
        raise ValueError(
            f"{folder} was trained on other data (digest {known[:12]}, now {task.dataset.digest[:12]}); "
            "its data.root no longer holds them"
        )
    task.prepare(report)
    model = task.build(norm)
    payload = checkpoint.read(folder / record.CHECKPOINTS / f"{which}.pt")
    model.load_state_dict(payload["model"])
    step = payload["step"] if which == "best" else payload["state"]["step"]
    return Trained(task, model.eval(), step)
