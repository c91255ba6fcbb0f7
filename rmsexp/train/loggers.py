"""Copy the metrics to TensorBoard and Weights & Biases, where each can be drawn against steps and time in training.

Loggers do not change the results of a run: a logger that fails is switched off, and the run goes on without it.
"""

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rmsexp.config.identity import shortened
from rmsexp.config.schema import LoggerConfig
from rmsexp.records.record import Row
from rmsexp.system import atomic, clock
from rmsexp.system.files import read_regular
from rmsexp.train.progress import Failures

LONGEST_NAME, LONGEST_TAG = 128, 64  # largest number of characters of a name and a tag in Weights & Biases


def scalars(row: Row) -> dict[str, float]:
    """Return a row's finite values by names such as ``train/loss``; ``<split>/time`` is the time in training."""
    skipped = ("step", "split", "seconds")
    values = {f"{row['split']}/{key}": value for key, value in row.items() if key not in skipped and value is not None}
    return values | {f"{row['split']}/time": clock.Clock(row["seconds"]).time}


class TensorBoardLogger:
    """Writes event files to ``<run>/tensorboard``.

    The wall time of a value is the beginning of the run plus the time in training, so that TensorBoard draws values
    against this time on its axes "relative" and "wall". What an earlier process wrote for later steps is dropped.
    """

    def __init__(self, folder: Path, _: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._began, step = clock.timestamp(facts["sessions"][0]["started"]), facts["sessions"][-1]["from_step"]
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else 0)

    def log(self, row: Row) -> None:
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row["step"], walltime=self._began + clock.Clock(row["seconds"]).time)

    def close(self, status: str) -> None:  # noqa: ARG002
        self._writer.close()


class WandbLogger:
    """Writes to Weights & Biases, with files in ``<run>/wandb``.

    The runs of a setting are a group. The step is that of the run; ``time``, the seconds in training, is the default
    axis of all values. A continued run keeps its id, which is in a file. Of steps that it takes again, Weights & Biases
    keeps the earlier values, and may lack those of an evaluation in which the run was stopped.
    """

    def __init__(
        self, folder: Path, resolved: Mapping[str, Any], facts: Mapping[str, Any], *, tags: list[str], **options: Any
    ) -> None:
        import wandb

        path = folder / "wandb" / "id"
        if facts["sessions"][-1]["from_step"] == 0 or not path.exists():
            # random, so that runs of the same name never meet
            path.parent.mkdir(exist_ok=True)
            atomic.write_atomic(path, uuid.uuid4().hex)
        setting, series = f"{facts['task']}/{facts['setting']}", f"{facts['series']}-seed{facts['seed']}"
        own = [str(facts[key])[:LONGEST_TAG] for key in ("task", "scale", "norm", "impl")]
        self._run = wandb.init(
            **options,
            dir=str(folder),
            name=shortened(f"{setting}/{series}".replace("/", "-"), LONGEST_NAME),
            group=shortened(setting, LONGEST_NAME),
            tags=[*dict.fromkeys([*own, *tags])],
            id=read_regular(path).decode(),
            resume="allow",
            config={**resolved, "setting": facts["setting"], "series": facts["series"]},
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("time")
        self._run.define_metric("*", step_metric="time", step_sync=False)
        best, mode = "{selection}/{metric}".format_map(facts["target"]), facts["target"]["mode"]
        self._run.define_metric(best, summary=mode, step_metric="time", step_sync=False)

    def log(self, row: Row) -> None:
        self._run.log(scalars(row) | {"time": clock.Clock(row["seconds"]).time}, step=row["step"])

    def close(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=1 if status == "failed" else 0)


KINDS = {"wandb": WandbLogger, "tensorboard": TensorBoardLogger}


def opened(
    options: LoggerConfig | None,
    failures: Failures,
    folder: Path,
    resolved: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the loggers that a config chooses, by names such as "logger=wandb", except those that fail to begin.

    ``failures``: gets their errors. ``folder``: that of the run; ``resolved``: its config; ``facts``: the content of
    its ``run.json``.
    """
    chosen = {} if options is None else {name: value for name, value in vars(options).items() if value is not None}
    made = {
        f"logger={name}": failures.attempt(f"logger={name}", KINDS[name], folder, resolved, facts, **vars(settings))
        for name, settings in chosen.items()
    }
    return {name: logger for name, logger in made.items() if logger is not None}
