"""Add up the gradients and the values of a step's micro-batches over the processes of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from rmsexp.system import process
from rmsexp.task import Objective
from rmsexp.train.distributed.group import Group
from rmsexp.train.step import Sums

T = TypeVar("T")
# On a GPU, signals are read about every READ_SECONDS, but at least every MOST_STEPS, because the host must wait for the
# GPU to read them. torchrun kills a process 30 seconds after its signal.
READ_SECONDS, MOST_STEPS = 1.0, 16


class JointSums(Sums):
    """Sums over the micro-batches of all processes.

    All that is added up is in one float32 vector: for each signal of ``STOPPING`` the number of processes that have got
    it, the numbers of predictions and of examples, the values, and the gradients of all parameters.
    """

    shared = True

    def __init__(self, group: Group, model: nn.Module) -> None:
        self._group = group
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._present = [False] * len(self._parameters)  # whether each parameter has had a gradient in this process
        self._used: list[bool] | None = None  # whether it has one in any process, agreed upon in the first step
        self._steps = 0
        self.interval = 1  # in steps: how often signals are read
        self.set_interval(0.0)

    def set_interval(self, seconds: float) -> None:
        """Choose how often signals are read. ``seconds``: what a step takes, the same number in all processes."""
        if self._group.device.type != "cpu":
            self.interval = max(1, int(READ_SECONDS / max(seconds, READ_SECONDS / MOST_STEPS)))

    def begin(self, number: int) -> None:
        super().begin(number)
        self._steps += 1

    def numbered(self, own: Sequence[T]) -> Iterable[tuple[int, T]]:
        return zip(range(self.number)[self._group.chosen], own, strict=True)

    def all(self, own: list[T]) -> list[T]:
        device = self._group.device
        gathered = self._group.interleaved(own, self.number)
        return tree_map_only(Tensor, lambda tensor: tensor.to(device), gathered)

    def finish(self) -> None:
        if self._used is None:
            self.metrics = self._group.share(self.metrics)
        flat = self._total()
        if self._used is None:
            self._used = [any(column) for column in zip(*self._group.gather(self._present), strict=True)]
        if any(present and not used for present, used in zip(self._present, self._used, strict=True)):
            raise RuntimeError("a parameter that had no gradient in the first step has one now")
        sizes = [len(process.STOPPING), 2, len(self.metrics) + 1, *(p.numel() for p in self._parameters)]
        signals, counts, values, *gradients = flat.split(sizes)
        for parameter, used, gradient in zip(self._parameters, self._used, gradients, strict=True):
            parameter.grad = torch.empty_like(parameter).copy_(gradient.view_as(parameter)) if used else None
        self.values, (self.count, self.examples) = values, counts.clone().unbind()
        if self._steps % self.interval == 0:
            received = [number for number, count in zip(process.STOPPING, signals.tolist(), strict=True) if count]
            self._group.stop = received[0] if received else None

    def _total(self) -> Tensor:
        """Return the sum of all processes' vectors."""
        raise NotImplementedError

    def _vector(self, values: Tensor, count: float | Tensor, examples: float | Tensor) -> Tensor:
        """Return the vector of this process with its present gradients, which it removes from the parameters."""
        got = self._group.interrupt.received
        head = values.new_tensor([*(float(number == got) for number in process.STOPPING), count, examples])
        self._present = [was or p.grad is not None for was, p in zip(self._present, self._parameters, strict=True)]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        vector = torch.cat([head, values, *(gradient.flatten() for gradient in gradients)])
        for parameter in self._parameters:
            parameter.grad = None
        return vector


class OrderedSums(JointSums):
    """Sums in the order of the micro-batches, so that they do not depend on the number of processes.

    The process of micro-batch m receives the sums over those before it from the process of micro-batch m - 1, adds its
    own, and sends them on. The process of the last one sends them to all. At most three gradients are in a process's
    memory: its own as tensors, then as a vector, and the vector that it received.
    """

    _vector_of_last: Tensor | None = None

    def add(self, micro: int, values: Tensor, objective: Objective, examples: int) -> None:
        self.metrics = list(objective.sums)
        own = self._vector(values, objective.count, examples)
        if micro > 0:
            before = torch.empty_like(own)
            self._group.receive(before, (micro - 1) % self._group.size)
            own = before.add_(own)
        if micro < self.number - 1:
            self._group.send(own, (micro + 1) % self._group.size)
        else:
            self._vector_of_last = own

    def _total(self) -> Tensor:
        total, self._vector_of_last = self._vector_of_last, None
        if total is None:
            length = len(process.STOPPING) + 3 + len(self.metrics) + sum(p.numel() for p in self._parameters)
            total = torch.empty(length, device=self._group.device)
        self._group.broadcast(total, (self.number - 1) % self._group.size)
        return total


class FastSums(JointSums):
    """Sums that each process first computes for its own micro-batches; then one reduction adds up the processes' sums.

    This is what DistributedDataParallel does, but it reduces several buckets, which it forms anew after the first step.
    From three processes on, the order in which a number is added depends on its place in a bucket, so a continued run
    would differ from an undisturbed one. The vector here is the same in each step.
    """

    def _total(self) -> Tensor:
        values = self.values
        if values is None:  # without a micro-batch in this step
            values = torch.zeros(len(self.metrics) + 1, device=self._group.device)
        vector = self._vector(values, self.count, self.examples)
        self._group.sum(vector)
        return vector


KINDS: dict[str, type[JointSums]] = {"ordered": OrderedSums, "fast": FastSums}
