"""Small versions of the translation tasks, shared by several test files."""

from pathlib import Path
from typing import Any

from helpers.tasks import task_and_model

TASKS = ("rnnsearch", "transformer")
TRAIN = 310  # number of training pairs in the data set of the fixture text_root
SIZES = {
    "rnnsearch": ("model.embedding=8", "model.hidden=12", "batch_size=20", "pool=3"),
    "transformer": (
        *("model.width=16", "model.layers=1", "model.inner=16", "model.heads=2"),
        *("tokens=200", "pool=100", "accumulate=2", "schedule.warmup=2"),
    ),
}
SHORT = ("data.max_length=16", "data.overlong=drop")  # short sentences, for tests that decode step by step
SEARCH = ("decoding.max_length=6", "decoding.beyond_source=2", "decoding.beam=2")


def tiny(task: str) -> list[str]:
    return [f"task={task}", "data.vocabulary=300", *SIZES[task], *SEARCH]


def make(root: Path, task: str, *overrides: str) -> tuple[Any, Any]:
    return task_and_model(*tiny(task), f"data.root={root}", *overrides)
