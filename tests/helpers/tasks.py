"""Helpers for the tests of several tasks: make and train a task's model, check batches, check a command's result."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from helpers.tensors import digest
from rmsexp import config, tasks
from rmsexp.train.randomness import StreamNoise, stream


def task_and_model(*words: str) -> tuple[Any, Any]:
    """Return the task that a command line with these words makes, with its data prepared, and its initialised model."""
    job = config.job(list(words))
    task = tasks.make(job, torch.device("cpu"))
    task.prepare(lambda _: None)
    model = task.build(job.norm)
    task.initialise(model)
    return task, model


def shake(model: nn.Module, std: float = 1.0) -> None:
    """Add normal noise with this standard deviation to all parameters, so that results differ between inputs."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            parameter.add_(torch.empty(parameter.shape).normal_(0, std, generator=stream(0, "shake", name)))


def train(task: Any, model: nn.Module, steps: int) -> None:
    optimizer = task.optimizer(model)
    for step in range(steps):
        for micro, batch in enumerate(task.batches(step)):
            task.objective(model, batch, StreamNoise(0, "noise", step, micro)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def steps_of(task: Any, epoch: int) -> range:
    """Return the numbers of the steps of an epoch; epochs count from 0."""
    return range(epoch * int(task.steps_per_epoch), (epoch + 1) * int(task.steps_per_epoch))


def assert_batches_follow_from_seed_and_step(
    make: Callable[..., tuple[Any, Any]], parts: Callable[[Any], Iterable[Tensor]] = iter
) -> None:
    """Check that a step's batches depend neither on the norm nor on the batches that were loaded before.

    Check, too, that they differ from those of other steps and of another seed. ``make`` returns the task and the model
    for given overrides; ``parts`` returns the tensors of a batch.
    """
    epoch = len(steps_of(make()[0], 0))
    steps = [0, 1, epoch - 1, epoch, epoch + 1, 2 * epoch, 5 * epoch + 2]

    def batches(norm: str, order: list[int], *overrides: str) -> dict[int, str]:
        task, _ = make(f"norm={norm}", *overrides)
        return {step: digest(*(part for batch in task.batches(step) for part in parts(batch))) for step in order}

    expected = batches("rms", steps)
    assert len(set(expected.values())) == len(steps)
    for norm in ("bn", "none"):
        assert batches(norm, steps[::-1]) == expected
    assert batches("rms", steps[4:5]) == {steps[4]: expected[steps[4]]}
    assert not set(batches("rms", steps, "seed=1").values()) & set(expected.values())


@dataclass(frozen=True)
class Ended:
    """The exit status of a command, and what it printed to the standard output and to the standard error."""

    status: int
    out: str
    err: str

    def assert_refused(self, message: str) -> None:
        """Check that the command refused its arguments: it printed only a message of one line, and exited with 2."""
        assert (self.status, self.out) == (2, "")
        assert self.err.startswith("rmsexp: ")
        assert message in self.err
        assert self.err.count("\n") == 1

    def assert_failed(self, message: str) -> None:
        """Check that the command exited with 1 or 2 after a message of one or two lines, and without a traceback."""
        assert self.status in (1, 2), self.out
        message_lines = self.err[self.err.rindex("rmsexp: ") :]
        assert message in message_lines
        assert message_lines.count("\n") <= 2
        assert "Traceback" not in self.err
        assert "traceback" not in message_lines


Main = Callable[..., Ended]
