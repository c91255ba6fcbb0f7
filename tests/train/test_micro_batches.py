"""Steps that are split into micro-batches: gradients, values, running statistics, precision, resuming."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.slopes import slopes_trainer
from helpers.tasks import task_and_model
from helpers.translation_tasks import tiny
from torch import Tensor

from rmsexp.task import MicroBatches
from rmsexp.train.randomness import StreamNoise
from rmsexp.train.step import Stepper

STEP = 1
TINY = {
    "cifar10": ["task=cifar10", "model.width=0.05", "model.noise=0", "model.dropout=0", "batch_size=8"],
    "attentive_reader": ["task=attentive_reader", "model.width=8", "model.dropout=0", "batch_size=16"],
    "order_embedding": ["task=order_embedding", "model.embedding=8", "model.hidden=8", "batch_size=8"],
    "rnnsearch": [*tiny("rnnsearch"), "batch_size=8"],
}


@pytest.fixture
def words(data_root: Path, text_root: Path, small_synthetic_data: None) -> dict[str, list[str]]:  # noqa: ARG001
    roots = {"cifar10": data_root, "rnnsearch": text_root}
    return {task: [*tiny, f"data.root={roots.get(task, data_root)}"] for task, tiny in TINY.items()}


class Recorder(torch.optim.SGD):
    """An optimiser that records the gradients, by parameter, and changes no parameter."""

    def step(self, closure: Any = None) -> Any:  # noqa: ARG002
        self.gradients = [None if p.grad is None else p.grad.clone() for p in self.param_groups[0]["params"]]


def step_of(*words: str) -> tuple[list[Tensor], list[float], dict[str, Tensor], Any]:
    """Return gradients by parameter, values, buffers and the task after one step of a new model."""
    task, model = task_and_model(*words, "threads=1", "optim.clip=null")
    stepper = Stepper(task.config, task, model, torch.device("cpu"))
    optimizer = stepper.optimizer = Recorder(model.parameters(), lr=1.0)
    result = stepper.take(STEP, task.batches(STEP))
    assert result.examples == sum(task.examples(batch) for batch in task.batches(STEP))
    gradients = [gradient for gradient in optimizer.gradients if gradient is not None]
    values = [*result.values.tolist(), result.predictions]
    return gradients, values, {name: buffer.clone() for name, buffer in model.named_buffers()}, task


@pytest.mark.parametrize("task", TINY)
def test_the_gradient_is_that_of_the_whole_batch(task: str, words: dict[str, list[str]]) -> None:
    """Three micro-batches divide neither 8 nor 16 examples, so the micro-batches have different weights."""
    whole, values, _, _ = step_of(*words[task], "norm=rms")
    parts, values_of_parts, _, made = step_of(*words[task], "norm=rms", "micro_batches=3")
    sizes = [made.examples(batch) for batch in made.batches(STEP)]
    assert len(sizes) == 3
    assert max(sizes) == min(sizes) + 1
    assert values_of_parts == pytest.approx(values, rel=1e-4)
    for part, expected in zip(parts, whole, strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-6 * expected.abs().max().item() + 1e-9)


@pytest.mark.parametrize(
    ("task", "few"),
    [
        *(("cifar10", 1), ("attentive_reader", 1), ("attentive_reader", 5)),
        pytest.param("rnnsearch", 1, marks=pytest.mark.minutes),
    ],
)
def test_batch_norms_take_the_statistics_of_each_micro_batch(task: str, few: int, words: dict[str, list[str]]) -> None:
    """The literal computation starts each micro-batch with the same model and adds the weighted gradients.

    ``few``: time steps with fewer examples use running statistics, which make a micro-batch depend on those before it
    if they were updated in between. Without such time steps, running statistics are those of successive batches.
    """
    line = [*words[task], "norm=bn", "micro_batches=3", f"norm.min_examples={few}"]
    gradients, _, buffers, _ = step_of(*line)
    made, model = task_and_model(*line, "threads=1")
    batches, successive = made.batches(STEP), copy.deepcopy(model)
    literal: list[Tensor] | None = None
    for micro, batch in enumerate(batches):
        part, share = copy.deepcopy(model), batches.weights[micro] / sum(batches.weights)
        (made.objective(part, batch, StreamNoise(0, "noise", STEP, micro)).loss * share).backward()
        found = [p.grad for p in part.parameters() if p.grad is not None]
        literal = found if literal is None else [a + b for a, b in zip(literal, found, strict=True)]
        made.objective(successive, batch, StreamNoise(0, "noise", STEP, micro))
    for gradient, expected in zip(gradients, literal, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)
    expected_buffers = dict(successive.named_buffers())
    assert buffers.keys() == expected_buffers.keys()
    equal = all(torch.equal(buffers[name], expected_buffers[name]) for name in buffers)
    assert equal == (few == 1)


def test_batch_norms_of_a_coupled_loss_take_the_statistics_of_each_micro_batch(words: dict[str, list[str]]) -> None:
    line = [*words["order_embedding"], "norm=bn", "norm.min_examples=1", "micro_batches=3"]
    gradients, _, buffers, _ = step_of(*line)
    task, model = task_and_model(*line, "threads=1")
    rows = [task.embed(model, batch) for batch in task.batches(STEP)]
    task.coupled(*(torch.cat(column) for column in zip(*rows, strict=True))).loss.backward()
    expected = [p.grad for p in model.parameters() if p.grad is not None]
    for gradient, literal in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, literal, rtol=1e-4, atol=1e-6)
    assert all(torch.equal(buffers[name], buffer) for name, buffer in model.named_buffers())


def test_the_last_batch_of_an_epoch_may_have_fewer_examples_than_micro_batches(words: dict[str, list[str]]) -> None:
    task, _ = task_and_model(*words["rnnsearch"], "batch_size=11", "micro_batches=9", "norm=none")  # 310 = 28 * 11 + 2
    batches = task.batches(int(task.steps_per_epoch) - 1)
    assert batches.weights == [1, 1]
    assert [task.examples(batch) for batch in batches] == [1, 1]


def test_a_micro_batch_of_weight_0_adds_nothing(tmp_path: Path) -> None:
    trainer, _ = slopes_trainer([[[1.0, 2.0, 3.0], [9.0, 9.0, 9.0]]], tmp_path, model := torch.nn.Linear(3, 1))
    trainer.task.batches = lambda step: MicroBatches(trainer.task.steps[step], [5, 0])
    trainer.run()
    assert model.weight.tolist() == [[-1.0, -2.0, -3.0]]


def test_the_values_of_a_step_in_bfloat16_are_close_to_those_in_float32(words: dict[str, list[str]]) -> None:
    line = [*words["order_embedding"], "norm=rms", "micro_batches=3"]
    half, single = step_of(*line, "precision=bfloat16")[1], step_of(*line)[1]
    assert half == pytest.approx(single, rel=0.05, abs=0.05)
    assert half != single
