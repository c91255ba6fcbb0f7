"""Short runs of every task, whose losses with fused and with eager norms are compared."""

from __future__ import annotations

from helpers import reading_and_retrieval, translation_tasks
from rmsexp.records import record

TASKS = ("cifar10", "language_model", *translation_tasks.TASKS, *reading_and_retrieval.TASKS)


def losses(run: record.Record) -> list[tuple[str, int, float]]:
    """Return split, step and loss of each row of a run's metrics."""
    return [(row["split"], row["step"], row["loss"]) for row in run.metrics]
