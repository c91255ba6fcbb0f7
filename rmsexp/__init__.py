"""Reproduction of "Root Mean Square Layer Normalization", and a bench that compares normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmsexp.record import Record

__all__ = ["run"]


def run(
    task: str = "cifar10", norm: str = "rms", overrides: Sequence[str] = (), config_dir: str | None = None
) -> Record:
    """Begin a run or continue it, and return its record. A run that diverged or reached max_steps is not repeated.

    ``overrides``: GROUP=CHOICE and KEY=VALUE words as on the command line. ``config_dir``: a folder with your own
    configs, as for ``--config-dir``.

    Raises: ConfigError for a mistake in the options; RuntimeError if the run fails; RunLockedError if another process
    writes the run; KeyboardInterrupt if Ctrl-C or SIGTERM stops it.
    """
    from rmsexp import config, record, runner

    job = config.job([f"task={task}", f"norm={norm}", *map(config.expand_home, overrides)], config_dir)
    outcome = runner.execute(job)
    if outcome.signum is not None:
        raise KeyboardInterrupt
    if outcome.status == "failed":
        raise RuntimeError(outcome.error)
    return record.read(job.folder)
