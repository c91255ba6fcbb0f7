"""What the tests of several tasks share: a task with its model, a few steps, what a command left, common claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from helpers.tensors import digest
from rmsexp import config, tasks
from rmsexp.train.randomness import StreamNoise, stream

NORMS = config.options("norm")


def task_and_model(*words: str) -> tuple[Any, Any]:
    """Return the task of some overrides, with its data, and its model, initialised."""
    job = config.job(list(words))
    task = tasks.make(job, torch.device("cpu"))
    task.prepare(lambda _: None)
    model = task.build(job.norm)
    task.initialise(model)
    return task, model


def shake(model: nn.Module, std: float = 1.0) -> None:
    """Add normal noise to all parameters, so that the model's results for different inputs differ."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            parameter.add_(torch.empty(parameter.shape).normal_(0, std, generator=stream(0, "shake", name)))


def train(task: Any, model: nn.Module, number: int) -> None:
    optimizer = task.optimizer(model)
    for step in range(number):
        for micro, batch in enumerate(task.batches(step)):
            task.objective(model, batch, StreamNoise(0, "noise", step, micro)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def steps_of(task: Any, epoch: int) -> range:
    """The steps of an epoch."""
    return range(epoch * int(task.steps_per_epoch), (epoch + 1) * int(task.steps_per_epoch))


def assert_batches_follow_from_seed_and_step(
    make: Callable[..., tuple[Any, Any]], parts: Callable[[Any], Iterable[Tensor]] = iter
) -> None:
    """Whatever the norm, and whichever came before. ``make`` takes overrides; ``parts``: the tensors of a batch."""
    epoch = len(steps_of(make()[0], 0))
    asked = [0, 1, epoch - 1, epoch, epoch + 1, 2 * epoch, 5 * epoch + 2]

    def batches(norm: str, order: list[int], *overrides: str) -> dict[int, str]:
        task, _ = make(f"norm={norm}", *overrides)
        return {step: digest(*(part for batch in task.batches(step) for part in parts(batch))) for step in order}

    expected = batches("rms", asked)
    assert len(set(expected.values())) == len(asked)
    for norm in ("ln", "bn", "none"):
        assert batches(norm, asked[::-1]) == expected
    assert batches("rms", asked[4:5]) == {asked[4]: expected[asked[4]]}
    assert not set(batches("rms", asked, "seed=1").values()) & set(expected.values())


@dataclass(frozen=True)
class Ended:
    """The exit status of a command, and everything that it printed."""

    status: int
    out: str
    err: str

    def assert_refused(self, message: str) -> None:
        """The command refused its words in one line, before it did anything."""
        assert (self.status, self.out) == (2, "")
        assert self.err.startswith("rmsexp: ")
        assert message in self.err
        assert self.err.count("\n") == 1

    def assert_failed(self, message: str) -> None:
        """The command failed with one or two lines at the end, and without a traceback."""
        assert self.status in (1, 2), self.out
        message_lines = self.err[self.err.rindex("rmsexp: ") :]
        assert message in message_lines
        assert message_lines.count("\n") <= 2
        assert "Traceback" not in self.err
        assert "traceback" not in message_lines


Main = Callable[..., Ended]
