"""The training step, the trainer and the contention of a run on several processes, and on one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from rmsexp.records import record
from rmsexp.system import clock, process
from rmsexp.system.clock import Clock
from rmsexp.task import MicroBatches, Task, checked
from rmsexp.train import provenance
from rmsexp.train.checkpoint import Identity
from rmsexp.train.contention import Contention
from rmsexp.train.distributed.group import Group, LostError
from rmsexp.train.distributed.sums import KINDS
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
    """Return the start of process 0, whose model and optimiser are set on all processes.

    ``start``: what :func:`rmsexp.train.loop.restore` returned in process 0; None in the others. The other arguments,
    such as ``impl``, the implementation of the norms, are those of this process.

    Raises: ReportedError if the processes differ in what results depend on, or in the steps at which they meet.
    """
    facts = {"code": provenance.code(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    facts |= {"impl": impl, record.OWN_CODE: provenance.own_modules(resolved)} | {key: resolved[key] for key in EDGES}
    facts |= {key: stepper.task.notes.get(key) for key in (record.SUBWORDS, record.WORDS)}
    group.require_equal(identity._asdict() | facts)
    parts: list[Any] = [stepper.model, stepper.optimizer]
    states = [] if start is None else tree_map_only(Tensor, Tensor.cpu, [part.state_dict() for part in parts])
    states, start = group.share((states, start))
    assert start is not None
    if group.rank > 0:
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
    return start


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
    """

    _contention: JointContention

    @property
    def _group(self) -> Group:
        return self._contention.group

    def run(self) -> None:
        """Train as one process does. Raises, besides: LostError."""
        with self._interrupt.deferred():
            try:
                super().run()
            except Diverged:  # in all processes, without a last checkpoint
                self._contention.exchange()
                raise
            except LostError:
                if self._writer is not None and self._group.backend == "gloo":  # with nccl the step may be incomplete
                    Trainer._collect(self)
                    Trainer._checkpoint(self)
                    self._display.report(f"saved step {self.state.step}")
                raise

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

    def _checkpoint(self) -> None:
        self._contention.exchange()
        super()._checkpoint()


class Processes:
    """The processes of a run: those of ``group``, of which this is process 0, or this process alone (None).

    ``facts``: what the record says of them. ``trainer``: the class that trains. ``is_restarted``: whether torchrun has
    started the run before.
    """

    def __init__(self, group: Group | None) -> None:
        self.group, self.facts = group, {} if group is None else group.facts
        self.interrupt = Interrupt() if group is None else group.interrupt
        self.is_restarted = process.is_restarted() if group is None else group.is_restarted
        self.trainer = Trainer if group is None else JointTrainer

    def preparing(self) -> AbstractContextManager[None]:
        """Return the context in which the data are prepared."""
        return nullcontext() if self.group is None else self.group.preparing()

    def contention(self, device: torch.device, shared: bool) -> Contention:
        """Return the contention of the run. ``shared``: whether other runs are done at the same time."""
        return Contention(device, shared=shared) if self.group is None else JointContention(device, self.group)
