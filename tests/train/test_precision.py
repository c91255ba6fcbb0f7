"""The precision of a run: part of its identity, and gradients that are close to those of float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.tasks import task_and_model
from torch import Tensor

from rmsexp.train.step import Stepper

CPU = torch.device("cpu")
TINY = ["task=order_embedding", "model.embedding=8", "model.hidden=8", "batch_size=8", "threads=1", "norm=rms"]


def values(*words: str) -> Tensor:
    """Return the values of a step in three micro-batches."""
    task, model = task_and_model(*words, "micro_batches=3")
    return Stepper(task.config, task, model, CPU).take(1, task.batches(1)).values


@pytest.mark.usefixtures("small_synthetic_data")
def test_the_values_of_a_step_in_bfloat16_are_close_to_those_in_float32(text_cache: Path) -> None:
    line = [*TINY, f"data.root={text_cache}"]
    half, single = values(*line, "precision=bfloat16"), values(*line)
    torch.testing.assert_close(half, single, rtol=0.05, atol=0.05)
    assert not torch.equal(half, single)
