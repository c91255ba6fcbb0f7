"""Add up the gradients and the values of a step's micro-batches, on one process or over all of a run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rmsexp.system import process
from rmsexp.task import Objective
from rmsexp.train.distributed.group import Group


class Sums:
    """Sums over the micro-batches of a step, which are added in their order; one object is used for all steps.

    ``values``: the loss, and each of ``metrics``. ``count``: predictions. ``examples``: training examples. The backward
    passes add up the gradients. ``number``: that of the step's micro-batches.
    """

    values: Tensor | None = None
    metrics: Sequence[str] = ()
    count: int | Tensor = 0
    examples: int | Tensor = 0
    number = 0

    def begin(self, number: int) -> None:
        """Begin with a step of ``number`` micro-batches."""
        self.values, self.count, self.examples, self.number = None, 0, 0, number

    def add(self, micro: int, values: Tensor, objective: Objective, examples: int) -> None:  # noqa: ARG002
        """Add micro-batch number ``micro`` after its backward pass. ``values``: its share of :attr:`values`."""
        self.values = values if self.values is None else self.values + values
        self.metrics = list(objective.sums)
        self.count += objective.count
        self.examples += examples

    def finish(self) -> None:
        """Complete the sums, and the gradients of the parameters, after the last micro-batch."""


class JointSums(Sums):
    """Sums over the micro-batches of all processes.

    All that is added up is in one float32 vector: for each signal of ``STOPPING`` the number of processes that have got
    it, the numbers of predictions and of examples, for each parameter the number of gradients, the values, and the
    gradients of all parameters. In each step the host reads the numbers, for which it waits for a GPU.

    ``ordered``: the vectors are added in the order of the micro-batches, so the sums do not depend on the number of
    processes. The process of micro-batch m receives the sums over those before it from the process of micro-batch
    m - 1, adds its own, and sends them on. The process of the last one sends them to all. At most three gradients are
    in a process's memory: its own as tensors, then as a vector, and the vector that it received.

    Otherwise each process adds up its own micro-batches, then one reduction those of the processes.
    DistributedDataParallel forms its buckets anew after the first step of each start, so from three processes on a
    continued run would differ from an undisturbed one.
    """

    def __init__(self, group: Group, model: nn.Module, ordered: bool) -> None:
        self._group, self._ordered = group, ordered
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._is_first = True  # whether this is the first step
        self._of_all: Tensor | None = None  # the ordered sum, in the process of the last micro-batch

    def add(self, micro: int, values: Tensor, objective: Objective, examples: int) -> None:
        super().add(micro, values, objective, examples)
        if not self._ordered:
            return
        own = self._vector()
        if micro > 0:
            before = torch.empty_like(own)
            self._group.receive(before, (micro - 1) % self._group.size)
            own = before.add_(own)
        if micro < self.number - 1:
            self._group.send(own, (micro + 1) % self._group.size)
        else:
            self._of_all = own

    def finish(self) -> None:
        if self._is_first:  # a process without a micro-batch does not know the names
            self.metrics, self._is_first = self._group.share(self.metrics), False
        of_parameters = [parameter.numel() for parameter in self._parameters]
        sizes = [len(process.STOPPING), 2, len(self._parameters), len(self.metrics) + 1, *of_parameters]
        if self._ordered:
            total, self._of_all = self._of_all, None
            total = torch.empty(sum(sizes), device=self._group.device) if total is None else total
            self._group.broadcast(total, (self.number - 1) % self._group.size)
        else:
            total = self._vector()
            self._group.sum(total)
        signals, counts, present, values, *gradients = total.split(sizes)
        used = present.tolist()
        for parameter, is_used, gradient in zip(self._parameters, used, gradients, strict=True):
            parameter.grad = torch.empty_like(parameter).copy_(gradient.view_as(parameter)) if is_used else None
        self.values, (self.count, self.examples) = values, counts.clone().unbind()
        received = [number for number, count in zip(process.STOPPING, signals.tolist(), strict=True) if count]
        self._group.stop = received[0] if received else None

    def _vector(self) -> Tensor:
        """Return the vector of what this process has added up, and begin again with nothing, also in gradients."""
        values = self.values
        if values is None:  # without a micro-batch in this step
            values = torch.zeros(len(self.metrics) + 1, device=self._group.device)
        signals = [float(number == self._group.interrupt.received) for number in process.STOPPING]
        present = [float(parameter.grad is not None) for parameter in self._parameters]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        head = values.new_tensor([*signals, self.count, self.examples, *present])
        vector = torch.cat([head, values, *(gradient.flatten() for gradient in gradients)])
        self.values, self.count, self.examples = None, 0, 0
        for parameter in self._parameters:
            parameter.grad = None
        return vector
