"""The training step, the trainer and the contention of a run on several processes, and on one."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from rmsexp.records import record
from rmsexp.system import clock, process
from rmsexp.system.clock import Clock
from rmsexp.task import MicroBatches, Task, checked
from rmsexp.train import provenance
from rmsexp.train.checkpoint import Identity
from rmsexp.train.contention import Contention
from rmsexp.train.distributed.group import Group
from rmsexp.train.distributed.sums import KINDS, JointSums
from rmsexp.train.interrupt import Interrupt, Interrupted
from rmsexp.train.loop import Diverged, Trainer
from rmsexp.train.state import State
from rmsexp.train.step import Settings, Stepper

SEVERITY = ("clear", "unknown", "contended")
# keys that set the steps at which all processes communicate
EDGES = ("max_steps", "log_every", "eval_every", "checkpoint_every")


def stepper_of(cfg: Any, task: Task, model: nn.Module, device: torch.device, group: Group | None) -> Stepper:
    """Return the training step of a model, with the optimiser of its task, on the processes of ``group``.

    ``cfg``: the config of the task. ``group``: None if this process is the only one.
    """
    sums = None if group is None else KINDS[cfg.reduce](group, model)
    return Stepper(task, model, task.optimizer(model), cfg.schedule, Settings.of(cfg, device), sums)


def share_start(
    group: Group,
    stepper: Stepper,
    start: tuple[State, Clock] | None,
    identity: Identity,
    resolved: Mapping[str, Any],
    impl: str,
) -> tuple[State, Clock]:
    """Return the start of process 0, whose model, optimiser and scale of the loss are set on all processes.

    ``start``: what :func:`rmsexp.train.loop.restore` returned in process 0; None in the others. ``identity`` and
    ``resolved``: the identity and the config of the run, as this process has them. ``impl``: the implementation of its
    norms.

    Raises: ReportedError if the processes differ in the parameters, in what results depend on, or in the steps at which
    they meet, where one would wait for the others in vain.
    """
    facts = {"code": provenance.code(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    facts |= {"impl": impl, record.OWN_CODE: provenance.own_modules(resolved)} | {key: resolved[key] for key in EDGES}
    facts |= {key: stepper.task.notes.get(key) for key in (record.SUBWORDS, record.WORDS)}
    group.require_equal(identity._asdict() | facts)
    parts: list[Any] = [stepper.model, stepper.optimizer, stepper.scaler]
    states = None if start is None else tree_map_only(Tensor, Tensor.cpu, [part.state_dict() for part in parts])
    states, start = group.share((states, start))
    assert states is not None
    assert start is not None
    if group.rank > 0:
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
    group.require_equal({"parameters": _digest([part.state_dict() for part in parts])})
    return start


def _digest(state: Any) -> str:
    """Return a digest of all tensors in nested values."""
    digest = hashlib.sha256()
    for value in tree_flatten(state)[0]:
        if isinstance(value, Tensor):
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class JointContention(Contention):
    """The contention of a run on several processes: that of the process that was disturbed most."""

    def __init__(self, device: torch.device, group: Group) -> None:
        super().__init__(device)
        self.group = group
        self.own_pids = {pid for host, pid in group.pids if host == group.pids[group.rank][0]}
        self.exchange()

    def exchange(self) -> None:
        """Find out which process was disturbed most. All processes must call this."""
        reports = self.group.gather(super().report())
        self._worst = max(reports, key=lambda report: (SEVERITY.index(report["state"]), report["waited"] or 0.0))

    def report(self) -> dict[str, Any]:
        """Return the report of the last :meth:`exchange`."""
        return self._worst


class JointTrainer(Trainer):
    """Trains on several processes, which take the same steps. Process 0 alone has a writer.

    A signal to any process stops all after the same step. If a process is lost, process 0 saves the last complete step.
    The contention must be a :class:`JointContention`, which has the group of processes.
    """

    _contention: JointContention
    _can_save = False  # whether the last step is complete

    @property
    def _group(self) -> Group:
        return self._contention.group

    @property
    def _sums(self) -> JointSums:
        return cast(JointSums, self._stepper.sums)

    def run(self) -> None:
        """Train as one process does. Raises, besides: LostError."""
        with self._interrupt.deferred(), self._group.guarded(self._save_after_loss):
            try:
                super().run()
            except Diverged:  # in all processes, without a last checkpoint
                self._contention.exchange()
                raise

    def _warm_up(self) -> None:
        super()._warm_up()
        self._can_save = self._group.backend == "gloo"  # after an error of nccl the last step may be incomplete
        self._sums.set_interval(math.inf)  # until it is known how long steps take

    def _train_to(self, edge: int) -> None:
        self._group.barrier()  # waiting here for what process 0 writes is no time of training
        super()._train_to(edge)

    def _batches(self, step: int) -> MicroBatches:
        return checked(self.task.batches(step, self._group.chosen), MicroBatches, "batches")

    def _step(self) -> None:
        super()._step()
        if self._group.stop is not None:
            raise Interrupted(self._group.stop)

    def _collect(self) -> None:
        super()._collect()
        clocks = self._group.gather(dict(self.clock.seconds))
        slowest = max(clocks, key=lambda seconds: sum(seconds[name] for name in clock.TIMED))
        # process 0 alone writes, so only it knows the seconds of that
        self.clock.seconds = clocks[0] | {name: slowest[name] for name in clock.TIMED}
        if (steps := self.state.step - self._first_step) > 0:
            self._sums.set_interval((self.clock.time - self._first_seconds) / steps)

    def _checkpoint(self) -> None:
        self._contention.exchange()
        super()._checkpoint()

    def _save_after_loss(self) -> None:
        """As process 0, save the last complete step, without the help of the other processes."""
        if self._writer is not None and self._can_save:
            Trainer._collect(self)
            Trainer._checkpoint(self)
            self._display.report(f"saved step {self.state.step}")


class OneProcess:
    """What differs between a run in one process and in several: this class is for one process.

    ``group``: its processes; None: this one. ``facts``: what the record says of them. ``trainer``: the class that
    trains. ``is_restarted``: whether torchrun has started the run before.
    """

    group: Group | None = None
    facts: Mapping[str, Any] = {}
    trainer: type[Trainer] = Trainer

    def __init__(self) -> None:
        self.interrupt, self.is_restarted = Interrupt(), process.is_restarted()

    def preparing(self) -> AbstractContextManager[None]:
        """Return the context in which the data are prepared."""
        return nullcontext()

    def contention(self, device: torch.device, shared: bool) -> Contention:
        """Return the contention of the run. ``shared``: whether other runs are done at the same time."""
        return Contention(device, shared=shared)


class JointProcesses(OneProcess):
    """The same for a run in several processes, of which this is process 0."""

    group: Group
    trainer = JointTrainer

    def __init__(self, group: Group) -> None:
        self.group, self.facts = group, group.facts
        self.interrupt, self.is_restarted = group.interrupt, group.is_restarted

    @contextmanager
    def preparing(self) -> Iterator[None]:
        self.group.announce(begins=True)
        with self.group.turn():
            yield

    def contention(self, device: torch.device, shared: bool) -> Contention:  # noqa: ARG002
        return JointContention(device, self.group)


def processes_of(group: Group | None) -> OneProcess:
    """Return what differs for a run in these processes. None: in this one alone."""
    return OneProcess() if group is None else JointProcesses(group)
