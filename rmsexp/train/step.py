"""One training step, for the training loop and for step timing."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map_only

from rmsexp.norms import Normaliser
from rmsexp.norms.batch import BatchNorm
from rmsexp.system import process
from rmsexp.system.command_line import ConfigError
from rmsexp.task import CoupledTask, MicroBatches, Objective, Task, checked
from rmsexp.train.group import Alone, Group
from rmsexp.train.optim import CLIPPING
from rmsexp.train.randomness import StreamNoise

WARMUP_STEPS = 3  # number of steps before training or timing that are excluded from the measured times

T = TypeVar("T")
Part = Callable[[str], AbstractContextManager[object]]  # from the name of a part to a context in which the part runs


class StepResult(NamedTuple):
    """The values of one step.

    ``values``, on the device, ``(len(metrics) + 2,)``: the objective, the sum of each metric in ``metrics``, and the
    norm of the gradient before clipping. ``predictions``: the number of predictions in each sum. ``examples``: the
    number of training examples.
    """

    values: Tensor
    metrics: list[str]
    predictions: int | Tensor
    examples: int | Tensor


class Sums:
    """Sums over the micro-batches of a step, which are added in their order; one object is used for all steps.

    ``values``: the objective, and each of ``metrics``. ``count``: predictions. ``examples``: training examples. The
    backward passes add up the gradients. ``number``: how many micro-batches the step has, in all processes.
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

    All that is added up is in one float32 vector: for each signal of ``STOPPING`` a number above 0 if a process has got
    it, the numbers of predictions and of examples, for each parameter the number of gradients, the values, and the
    gradients of all parameters. In each step the host reads the numbers, for which it waits for a GPU.

    ``ordered``: the vectors are added in the order of the micro-batches, so the sums do not depend on the number of
    processes. The process of micro-batch m receives the sums over those before it from the process of micro-batch
    m - 1, adds its own, and sends them on. The process of the last one sends them to all. At most three gradients are
    in a process's memory: its own as tensors, then as a vector, and the vector that it received.

    Otherwise each process adds up its own micro-batches, and one all-reduce adds up the sums of the processes.
    DistributedDataParallel is not used: it forms its buckets anew after the first step of each start, so with three or
    more processes a continued run would differ from an uninterrupted one.
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
        """Return the vector of what this process has added up; then reset the sums and the gradients."""
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


class Stepper:
    """A model with its task and optimiser, and the training step.

    ``config``: that of the task. ``group``: the processes that take the step together; None: this one alone.
    """

    def __init__(
        self, config: Any, task: Task, model: nn.Module, device: torch.device, group: Alone | None = None
    ) -> None:
        self.config, self.task, self.model, self.device = config, task, model, device
        self.optimizer, self.group = task.optimizer(model), group or Alone()
        ordered = config.reduce == "ordered"
        self._sums = JointSums(self.group, model, ordered) if isinstance(self.group, Group) else Sums()
        self._batch_norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
        if self.group.size > 1 and any(isinstance(module, _BatchNorm) for module in model.modules()):
            raise ConfigError("each process would have its own running statistics of torch's batch norm: use norm=bn")
        self._held: list[list[Any]] = []  # updates of the running statistics, by micro-batch and batch norm
        self._depending_on_step = depending_on_step(model)

    def take(self, step: int, batches: MicroBatches, part: Part = nullcontext) -> StepResult:
        """Do training step ``step`` (from 0); its parts "forward", "backward" and "update" run in ``part(name)``.

        The gradients of the micro-batches are added as :class:`Sums` or :class:`JointSums` says. Batch norms compute
        each micro-batch with the running statistics from before the step, and then update them by each, in order.
        """
        for group in self.optimizer.param_groups:
            group.update(self.rates(step))
        self.set_step(step)
        sums = self._sums
        sums.begin(len(batches.weights))
        if sums.number > 1 and isinstance(self.task, CoupledTask):
            self._coupled(batches, part)
        else:
            self._separate(step, batches, part)
        with part("update"):
            sums.finish()
            assert sums.values is not None
            held, self._held = self._held, []
            for updates in self._all(held) if self._batch_norms else []:
                for norm, of_norm in zip(self._batch_norms, updates, strict=True):
                    norm.apply_updates(of_norm)
            gradient_norm = self._update()
        values = torch.cat([sums.values, gradient_norm.reshape(1)])
        return StepResult(values, list(sums.metrics), sums.count, sums.examples)

    def set_step(self, step: int) -> None:
        """Set the step of the training in the norms that depend on it."""
        for layer in self._depending_on_step:
            layer.set_step(step)

    def rates(self, step: int) -> dict[str, float]:
        """Return the learning rate, ``lr``, and what else the schedule sets at a step, counted from 0."""
        rates = {name: float(value) for name, value in self.config.schedule.at(step).items()}
        return rates | {"lr": self.config.optim.lr * rates["lr"]}

    def _numbered(self, own: Sequence[T]) -> Iterable[tuple[int, T]]:
        """Return the items in ``own``, one for each of this process's micro-batches, after its number in the step."""
        return zip(range(self._sums.number)[self.group.chosen], own, strict=True)

    def _all(self, own: list[T]) -> list[T]:
        """Return the items of all micro-batches, in order. ``own``: those of this process's micro-batches."""
        gathered = self.group.interleaved(own, self._sums.number)
        return tree_map_only(Tensor, lambda tensor: tensor.to(self.device), gathered)

    def _update(self) -> Tensor:
        """Update the parameters and remove the gradients; return the norm of the gradient before clipping."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        optim = self.config.optim
        if optim.clip is not None:
            CLIPPING[optim.clipping](gradients, optim.clip, norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def _objective(self, step: int, micro: int, batch: Any, hold: bool) -> Objective:
        """Return the objective of micro-batch number ``micro`` of a step. For ``hold`` see :meth:`_computing`."""
        with self._computing(hold):
            noise = StreamNoise(self.config.seed, "noise", step, micro, device=self.device)
            return checked(self.task.objective(self.model, batch, noise), Objective, "objective")

    def loss(self, step: int, batch: Any) -> Tensor:
        """Return the objective of a step's first micro-batch. Of the training it changes only buffers of the model."""
        return self._objective(step, 0, batch, hold=False).loss

    def _separate(self, step: int, batches: MicroBatches, part: Part) -> None:
        """Add up the gradients and the values of micro-batches, each of which has its own objective."""
        weights, held = batches.weights, self._sums.number > 1 or self.group.size > 1
        for micro, batch in self._numbered(batches):
            with part("forward"):
                objective = self._objective(step, micro, batch, held)
                loss = objective.loss / (sum(weights) / weights[micro] if weights[micro] else math.inf)
            with part("backward"):
                loss.backward()
            self._sums.add(micro, _values(loss, objective), objective, self.task.examples(batch))

    def _coupled(self, batches: MicroBatches, part: Part) -> None:
        """Add up the gradients of micro-batches whose objective is that of the whole batch."""
        task, embedded = self.task, []
        assert isinstance(task, CoupledTask)
        with part("forward"):
            for batch in batches:
                with self._computing(hold=True):
                    embedded.append(task.embed(self.model, batch))
            rows = self._all([[tensor.detach() for tensor in tensors] for tensors in embedded])
            joined = [torch.cat(column).requires_grad_() for column in zip(*rows, strict=True)]
            with self._computing():
                objective = task.coupled(*joined)
        with part("backward"):
            of_rows = torch.autograd.grad(objective.loss, joined)
            gradients = [torch.split(gradient, list(batches.weights)) for gradient in of_rows]
            values = _values(objective.loss, objective)
            for micro, tensors in self._numbered(embedded):
                torch.autograd.backward(tensors, [column[micro] for column in gradients])
                if micro > 0:  # the values are those of the whole batch
                    values, objective = torch.zeros_like(values), dataclasses.replace(objective, count=0)
                self._sums.add(micro, values, objective, batches.weights[micro])

    @contextmanager
    def _computing(self, hold: bool = False) -> Iterator[None]:
        """Context that computes in the config's precision. With ``hold`` the running statistics stay as they are.

        Their updates are held until the end of the step, so that no micro-batch depends on the others.
        """
        norms = self._batch_norms if hold else []
        for norm in norms:
            norm.hold_updates()
        try:
            with autocast(self.config.precision, self.device):
                yield
        finally:
            if norms:
                self._held.append([norm.release_updates() for norm in norms])


def depending_on_step(model: nn.Module) -> list[Normaliser]:
    """Return the normalisers of a model that define :meth:`rmsexp.norms.Normaliser.set_step`."""
    layers = (layer for layer in model.modules() if isinstance(layer, Normaliser))
    return [layer for layer in layers if type(layer).set_step is not Normaliser.set_step]


@contextmanager
def require_calls_of_add(model: nn.Module) -> Iterator[None]:
    """Check that each class from outside this package that overrides ``Normaliser.add`` gets a call of it.

    Otherwise the override has no effect, and the run would be recorded as another norm than the one that it equals.

    Raises: ConfigError at the end of the context, if the model never called it.
    """
    own = [layer for layer in model.modules() if isinstance(layer, Normaliser)]
    own = [layer for layer in own if not type(layer).add.__module__.startswith("rmsexp.")]
    called = set[type]()

    def counted(layer: Normaliser) -> Callable[..., tuple[Tensor, Tensor]]:
        def add(*arguments: Any, **others: Any) -> tuple[Tensor, Tensor]:
            called.add(type(layer))
            return type(layer).add(layer, *arguments, **others)

        return add

    for layer in own:
        layer.add = counted(layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in own:
            del layer.add
    if unused := {type(layer).__name__ for layer in own if type(layer) not in called}:
        reason = "this task's model never calls it; choose another task or remove it"
        raise ConfigError(f"the class {min(unused)} has an add, but {reason}")


def _values(loss: Tensor, objective: Objective) -> Tensor:
    """Return the values that are added up. ``loss``: the micro-batch's share of the step's objective."""
    return torch.stack([value.detach().float() for value in (loss, *objective.sums.values())])


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which the model computes in float32, or with autocast to bfloat16."""
    return nullcontext() if precision == "float32" else torch.autocast(device.type, dtype=torch.bfloat16)


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
