"""Fixtures of the tests of kernels."""

from collections.abc import Iterator

import pytest
import torch
from helpers import language_models, reading_and_retrieval, translation_tasks
from helpers.triton_reference import DEVICE


@pytest.fixture
def default_device() -> Iterator[None]:
    with torch.device(DEVICE):
        yield


@pytest.fixture
def words(task: str, request: pytest.FixtureRequest) -> list[str]:
    """Return the command line of a task at demo scale with a smaller model."""
    if task == "cifar10":
        return ["task=cifar10", "model.width=0.05", "batch_size=8", f"data.root={request.getfixturevalue('data_root')}"]
    if task in translation_tasks.TASKS:
        root = request.getfixturevalue("text_root")
        return [*translation_tasks.tiny(task), *translation_tasks.SHORT, f"data.root={root}"]
    request.getfixturevalue("small_synthetic_data")
    return list(language_models.TINY) if task == "language_model" else reading_and_retrieval.tiny(task)
