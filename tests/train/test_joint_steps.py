"""Training steps of several processes, as threads of one: equal to the bit to those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tasks import task_and_model
from helpers.thread_group import in_threads

from rmsexp.train.step import Stepper

TINY = {
    "attentive_reader": ["task=attentive_reader", "model.width=8", "batch_size=16"],
    "order_embedding": ["task=order_embedding", "model.embedding=8", "model.hidden=8", "batch_size=16"],
    "language_model": [
        *("task=language_model", "model.width=16", "model.layers=1", "model.inner=32", "model.heads=2"),
        *("model.kv_heads=1", "context=16", "batch_size=8"),
    ],
}


@pytest.fixture
def words(text_cache: Path, small_synthetic_data: None) -> dict[str, list[str]]:  # noqa: ARG001
    shared = [f"data.root={text_cache}", "threads=1", "norm=bn", "norm.min_examples=3", "micro_batches=5"]
    return {task: [*tiny, *shared] for task, tiny in TINY.items()}


def trained(words: list[str], size: int, reduce: str = "ordered") -> list[tuple[Any, ...]]:
    """Return for each process the values of all steps, and then parameters, buffers and optimiser.

    With one process, this is a step without a group.
    """
    made = [task_and_model(*words, f"reduce={reduce}") for _ in range(size)]

    def train(group: Any) -> tuple[Any, ...]:
        task, model = made[group.rank]
        stepper = Stepper(task.config, task, model, group.device, None if size == 1 else group)
        values = []
        for step in range(2):
            batches = task.batches(step) if size == 1 else task.batches(step, group.chosen)
            result = stepper.take(step, batches)
            values.append((result.values, int(result.predictions), int(result.examples)))
        return values, model.state_dict(), stepper.optimizer.state_dict()["state"]

    return in_threads(size, train)


def assert_equal(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


# these take half of the time of the test below; the other tasks test bfloat16, too
SLOW = {("attentive_reader", "bfloat16")}


@pytest.mark.parametrize(
    ("task", "precision"),
    [
        pytest.param(task, precision, marks=pytest.mark.minutes if (task, precision) in SLOW else ())
        for task in TINY
        for precision in ("float32", "bfloat16")
    ],
)
def test_any_number_of_processes_gives_the_bits_of_one(task: str, precision: str, words: dict[str, list[str]]) -> None:
    """Of 2, 3 and 4 for the language model in float32, and of 3 for the others."""
    line = [*words[task], f"precision={precision}"]
    (expected,) = trained(line, 1)
    assert all(count.any() for name, count in expected[1].items() if name.endswith(".count"))  # none keeps its start
    for size in (2, 3, 4) if (task, precision) == ("language_model", "float32") else (3,):
        for found in trained(line, size):
            assert_equal(found, expected)


def test_the_fast_sum_is_equal_up_to_rounding_and_the_same_in_all_processes(words: dict[str, list[str]]) -> None:
    (expected,) = trained(words["language_model"], 1)
    results = trained(words["language_model"], 3, "fast")
    for found in results:
        assert_equal(found, results[0])
    torch.testing.assert_close(results[0][0], expected[0], rtol=1e-5, atol=1e-5)
    assert any(not torch.equal(results[0][1][name], value) for name, value in expected[1].items())
