"""Copy the metrics to TensorBoard and Weights & Biases.

Loggers do not change the results of a run: a logger that fails is switched off, and the run goes on without it.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rmsexp.config import LoggerConfig
from rmsexp.record import TIMED, Row
from rmsexp.train.failures import Failures


class Logger(Protocol):
    def log(self, row: Row) -> None:
        """Write a row of metrics."""

    def close(self, status: str) -> None:
        """Close the logger at the end of the process. ``status``: the run's final status."""


def check(options: LoggerConfig) -> None:
    """Raise ValueError if a config chooses TensorBoard and it is not installed."""
    if options.tensorboard is not None and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("logger=tensorboard needs TensorBoard: pip install 'rmsexp[tensorboard]'")


def make(options: LoggerConfig, folder: Path, config: Mapping[str, Any], step: int, failures: Failures) -> list[Logger]:
    """Return the loggers that a config chooses.

    ``step``: where the run begins or continues. TensorBoard drops what an earlier process wrote for later steps.
    ``failures``: gets the error of a logger that fails, which is then switched off.
    """
    chosen = {name: vars(settings) for name, settings in vars(options).items() if settings is not None}
    return [
        SafeLogger(f"logger={name}", failures, functools.partial(KINDS[name], folder, config, step, **settings))
        for name, settings in chosen.items()
    ]


def scalars(row: Row) -> dict[str, float]:
    """Return a row's finite values by names such as ``train/loss``; ``<split>/time`` is the time axis in seconds."""
    split, seconds = row["split"], row["seconds"]
    skipped = ("step", "split", "seconds")
    values = {f"{split}/{key}": value for key, value in row.items() if key not in skipped and value is not None}
    return values | {f"{split}/time": sum(seconds[name] for name in TIMED)}


class SafeLogger:
    """Passes rows on to a logger until the logger fails. ``start``: returns the logger."""

    def __init__(self, name: str, failures: Failures, start: Callable[[], Logger]) -> None:
        self._name, self._failures = name, failures
        self._logger = failures.attempt(name, start)

    def log(self, row: Row) -> None:
        if self._logger is not None:
            self._failures.attempt(self._name, self._logger.log, row)

    def close(self, status: str) -> None:
        if self._logger is not None:
            self._failures.attempt(self._name, self._logger.close, status)


class TensorBoardLogger:
    """Writes event files to ``<run>/tensorboard``."""

    def __init__(self, folder: Path, config: Mapping[str, Any], step: int) -> None:  # noqa: ARG002
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else 0)

    def log(self, row: Row) -> None:
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row["step"])

    def close(self, status: str) -> None:  # noqa: ARG002
        self._writer.close()


class WandbLogger:
    """Writes to Weights & Biases, with files in ``<run>/wandb``; all processes of a run use the same id."""

    def __init__(self, folder: Path, config: Mapping[str, Any], step: int, mode: str, project: str) -> None:  # noqa: ARG002
        import wandb

        name = "-".join(folder.parts[-4:])
        folder.joinpath("wandb").mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            mode=mode,  # type: ignore[arg-type]
            project=project,
            dir=str(folder),
            name=name,
            id=name.replace("+", "-").replace("=", "-"),
            resume="allow",
            config=dict(config),
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, row: Row) -> None:
        self._run.log(scalars(row), step=row["step"])

    def close(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=1 if status == "failed" else 0)


KINDS = {"wandb": WandbLogger, "tensorboard": TensorBoardLogger}
