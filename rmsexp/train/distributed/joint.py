"""The training step, the trainer and the contention of a run on several processes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from rmsexp.records import record
from rmsexp.system import clock
from rmsexp.task import MicroBatches, Schedule, Task, checked
from rmsexp.train import provenance
from rmsexp.train.checkpoint import Identity
from rmsexp.train.contention import Contention
from rmsexp.train.distributed.group import Group
from rmsexp.train.distributed.sums import KINDS
from rmsexp.train.interrupt import Interrupted
from rmsexp.train.loop import Diverged, Start, Trainer
from rmsexp.train.step import Settings, Stepper, Sums

T = TypeVar("T")
SEVERITY = ("clear", "unknown", "contended")
# keys that set the steps at which all processes communicate
EDGES = ("max_steps", "log_every", "eval_every", "checkpoint_every")


class JointStepper(Stepper):
    """A training step whose micro-batches are computed by all processes. ``reduce``: a key of ``KINDS``."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        settings: Settings,
        *,
        group: Group,
        reduce: str,
    ) -> None:
        super().__init__(task, model, optimizer, schedule, settings)
        self._group, self.joint_sums, self._number = group, KINDS[reduce](group, model), 0

    def _sums(self, number: int) -> Sums:
        self._number = number
        return self.joint_sums.begin(number)

    def _numbered(self, own: Sequence[T]) -> Iterable[tuple[int, T]]:
        return zip(range(self._number)[self._group.chosen], own, strict=True)

    def _all(self, own: list[T]) -> list[T]:
        device = self._group.device
        gathered = self._group.interleaved(own, self._number)
        return tree_map_only(Tensor, lambda tensor: tensor.to(device), gathered)

    def _holds(self, weights: Sequence[int]) -> bool:  # noqa: ARG002
        return True


def stepper_of(cfg: Any, task: Task, model: nn.Module, device: torch.device, group: Group | None) -> Stepper:
    """Return the training step of a model, with the optimiser of its task, on the processes of ``group``.

    ``cfg``: the config of the task. ``group``: None if this process is the only one.
    """
    parts = (task, model, task.optimizer(model), cfg.schedule, Settings.of(cfg, device))
    return Stepper(*parts) if group is None else JointStepper(*parts, group=group, reduce=cfg.reduce)


def share_start(
    group: Group, stepper: Stepper, start: Start | None, identity: Identity, resolved: Mapping[str, Any], impl: str
) -> Start:
    """Return the start of process 0, whose model, optimiser and scale of the loss are set on all processes.

    ``start``: that of process 0; None on the others. ``identity`` and ``resolved``: the identity and the config of the
    run, as this process has them. ``impl``: the implementation of its norms.

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
        worst = max(reports, key=lambda report: (SEVERITY.index(report["state"]), report["waited"] or 0.0))
        evidence, first = worst["based_on"], reports[0]  # which alone takes probes
        if evidence and "probes" in first["based_on"] and "probes" not in evidence:
            evidence = [*evidence, "probes"]
        self._worst = worst | {"probes": first["probes"], "based_on": evidence}

    def report(self) -> dict[str, Any]:
        """Return the report of the last :meth:`exchange`."""
        return self._worst

    def probe(self) -> bool:
        """Let process 0 take a probe, while the others wait, so that they do not disturb it."""
        spike = super().probe() if self.group.rank == 0 else False
        self.group.barrier()
        return spike


class JointTrainer(Trainer):
    """Trains on several processes, which take the same steps. Process 0 alone writes.

    A signal to any process stops all after the same step. If a process is lost, process 0 saves the last complete step.
    The contention must be a :class:`JointContention`, which has the group of processes.
    """

    _stepper: JointStepper
    _contention: JointContention
    _can_save = False  # whether the last step is complete

    @property
    def _group(self) -> Group:
        return self._contention.group

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
        self._stepper.joint_sums.set_interval(math.inf)  # until it is known how long steps take

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
            self._stepper.joint_sums.set_interval((self.clock.time - self._first_seconds) / steps)

    def _record(self, rows: list[record.Row]) -> None:
        if self._group.rank == 0:
            super()._record(rows)

    def _write_files(self) -> None:
        if self._group.rank == 0:
            super()._write_files()

    def _write_best(self, value: float) -> None:
        if self._group.rank == 0:
            super()._write_best(value)

    def _checkpoint(self) -> None:
        self._contention.exchange()
        if self._group.rank == 0:
            super()._checkpoint()

    def _save_after_loss(self) -> None:
        """As process 0, save the last complete step, without the help of the other processes."""
        if self._group.rank == 0 and self._can_save:
            Trainer._collect(self)
            Trainer._checkpoint(self)
            self._display.report(f"saved step {self.state.step}")
