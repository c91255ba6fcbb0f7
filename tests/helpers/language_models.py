"""A small version of the language model, shared by several test files."""

from typing import Any

from helpers.tasks import task_and_model

TINY = (
    *("task=language_model", "model.width=16", "model.heads=4", "model.kv_heads=2", "model.inner=24"),
    *("batch_size=5", "context=16", "schedule.warmup=2"),
)


def make(*overrides: str) -> tuple[Any, Any]:
    return task_and_model(*TINY, *overrides)
