"""Small versions of the attentive reader and order-embedding, shared by several test files."""

from typing import Any

from helpers.tasks import task_and_model

TASKS = ("attentive_reader", "order_embedding")
SIZES = {
    "attentive_reader": ("model.width=6", "batch_size=10"),
    "order_embedding": ("model.embedding=5", "model.hidden=6", "batch_size=9"),
}


def tiny(task: str) -> list[str]:
    return [f"task={task}", *SIZES[task]]


def make(task: str, *overrides: str) -> tuple[Any, Any]:
    return task_and_model(*tiny(task), *overrides)
