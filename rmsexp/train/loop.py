"""The training loop: train and evaluate a task's model, time it, and write a record that can be continued."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import torch

from rmsexp.records import record
from rmsexp.system import atomic
from rmsexp.system.clock import Clock
from rmsexp.system.machine_lock import Pause
from rmsexp.task import Extent, MicroBatches, checked, target_value
from rmsexp.train import checkpoint
from rmsexp.train.contention import Contention
from rmsexp.train.interrupt import Interrupt, Interrupted
from rmsexp.train.progress import ProgressDisplay
from rmsexp.train.state import State
from rmsexp.train.step import WARMUP_STEPS, Stepper, StepResult, autocast, synchronise
from rmsexp.train.writer import Writer


class Diverged(Exception):
    """The training objective is not finite. ``step``: the first step, counted from 0, in which this happened."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the training objective of step {step} is not finite")
        self.step = step


def restore(
    stepper: Stepper,
    files: record.RunFolder,
    identity: checkpoint.Identity,
    saved_step: int | None,
    warn: Callable[[str], None],
) -> tuple[State, Clock]:
    """Load the newest undamaged checkpoint of a run into the stepper's model and optimiser; drop later metrics.

    Without a checkpoint, initialise the model and drop all metrics. If the best model so far cannot be used, or is of a
    later step, whose metrics are dropped, the next evaluation replaces it.

    ``identity``: that of the run's checkpoints. ``saved_step``: the step of the last checkpoint according to the run's
    status; 0: there is none; None: not known. ``warn``: gets messages about checkpoints that are damaged or missing.

    Raises: checkpoint.CheckpointError if there are checkpoints and none can be used; RunLockedError if another process
    may have taken over the run.
    """

    def use(payload: checkpoint.Payload) -> tuple[State, Clock]:
        state, clock = State.of(payload["state"]), Clock(payload["clock"])
        stepper.model.load_state_dict(payload["model"])
        stepper.optimizer.load_state_dict(payload["optimizer"])
        files.cut_metrics(state.metrics_bytes)
        return state, clock

    files.check_lock()  # preparing the data may have taken hours; what follows cuts the metrics
    restored, warnings = checkpoint.load(files.checkpoints, identity, use)
    for warning in warnings:
        warn(warning)
    if restored is None:
        _drop_metrics(files, saved_step, warn)
        stepper.task.initialise(stepper.model)
        return State(), Clock()
    state, clock = restored
    if state.step < (saved_step or 0) and not warnings:
        warn(f"{files.checkpoints} lacks the last checkpoint, of step {saved_step}; continuing from an older one")
    try:
        best_step = 0 if state.best is None else checkpoint.read(files.checkpoints / checkpoint.BEST, identity)["step"]
    except checkpoint.CheckpointError as error:
        warn(f"{error}; the next evaluation replaces it")
        best_step = math.inf
    if best_step > state.step:
        state.best = None
    return state, clock


def _drop_metrics(files: record.RunFolder, saved_step: int | None, warn: Callable[[str], None]) -> None:
    """Remove the metrics of a run without checkpoints.

    Unless there never was a checkpoint (``saved_step`` is 0), the file is kept under another name.
    """
    path = files.metrics_path
    if not path.exists():
        return
    if saved_step == 0 and path.is_file():  # a folder of this name is kept, too
        path.unlink()
        return
    kept = atomic.move_aside(path).name
    warn(f"{files.checkpoints} has no checkpoint: the run begins again at step 0; its metrics are kept as {kept}")


class Trainer:
    """Trains a model on a task, from a state on.

    ``state``, ``clock``: those that :func:`restore` returns. ``writer``: writes the record; None if another process
    does. ``pause``: when to pause between two steps; None: never.
    """

    def __init__(
        self,
        stepper: Stepper,
        state: State,
        clock: Clock,
        writer: Writer | None,
        *,
        interrupt: Interrupt,
        contention: Contention,
        display: ProgressDisplay,
        pause: Pause | None = None,
    ) -> None:
        self.task, self.model, self.optimizer = stepper.task, stepper.model, stepper.optimizer
        self.settings, self.state, self.clock = stepper.settings, state, clock
        self._stepper, self._writer, self._interrupt, self._contention = stepper, writer, interrupt, contention
        self._display, self._pause = display, pause
        self._first_step, self._first_seconds, self._predictions = state.step, clock.time, 0
        self._first_spent = self._spent()
        self._recent: list[StepResult] = []  # of the steps since the last edge, with values on the device

    def run(self) -> None:
        """Train up to ``max_steps``. Log, evaluate and save checkpoints at their intervals and at the end.

        Raises: Diverged if the objective of a step is not finite; Interrupted for a signal, after saving a checkpoint
        unless the state may be inconsistent.
        """
        state, settings = self.state, self.settings
        try:
            with self.clock.bucket("warmup"):
                self._warm_up()
            while True:
                done = state.step >= settings.max_steps
                if state.pending and (done or state.step % settings.log_every == 0):
                    self._log()
                extents = settings.evaluations.at(state.step, done)
                if state.evaluated < state.step and extents:
                    self._evaluate(extents)
                if done or (state.step and state.step % settings.checkpoint_every == 0):
                    self._checkpoint()
                if done:
                    return
                if self._pause is not None and self._pause.is_due():
                    self._pause.wait(self._display.report)
                self._train_to(self._next_edge())
        except Interrupted as stop:
            if not stop.torn:  # a second Ctrl-C may have come in the middle of a step
                with self._interrupt.deferred():
                    self._collect()
                    self._checkpoint()
            raise

    def _next_edge(self) -> int:
        """Return the next edge: a step after which something is logged, evaluated or saved, or the last one."""
        step, settings = self.state.step, self.settings
        edges = ((step // every + 1) * every for every in (settings.log_every, settings.checkpoint_every))
        return min(settings.max_steps, settings.evaluations.after(step), *edges)

    def _warm_up(self) -> None:
        """Take the next step a few times, so that times exclude compilation and cold caches; then restore the state."""
        if self.state.step >= self.settings.max_steps:
            return
        model = {name: value.clone() for name, value in self.model.state_dict().items()}
        optimizer = copy.deepcopy(self.optimizer.state_dict())
        try:
            for _ in range(WARMUP_STEPS):
                self._update(self.state.step, self._batches(self.state.step))
            synchronise(self.settings.device)
        finally:
            with self._interrupt.deferred():
                self.model.load_state_dict(model)
                self.optimizer.load_state_dict(optimizer)
                self.optimizer.zero_grad()

    def _train_to(self, edge: int) -> None:
        """Train up to step ``edge``, or up to a pause; then fetch the values of these steps.

        The host waits for the device only then, so that the device is idle in a pause.
        """
        state, pause = self.state, self._pause
        with self._contention.watch():
            while state.step < edge and not (pause is not None and pause.is_due()):
                with self._interrupt.deferred():
                    self._step()
            with self.clock.bucket("train"):
                synchronise(self.settings.device)
        self._collect()

    def _step(self) -> None:
        with self.clock.bucket("data"):
            batches = self._batches(self.state.step)
        with self.clock.bucket("train"):
            self._recent.append(self._update(self.state.step, batches))
        self.state.step += 1

    def _batches(self, step: int) -> MicroBatches:
        return checked(self.task.batches(step), MicroBatches, "batches")

    def _update(self, step: int, batches: MicroBatches) -> StepResult:
        result = self._stepper.take(step, batches)
        self.state.metrics = result.metrics
        return result

    def _collect(self) -> None:
        """Fetch the values of the steps since the last call from the device, and add them to the pending ones.

        Raises: Diverged at the first step whose objective is not finite, after logging the steps before it. The seconds
        in their row include all steps up to the present one.
        """
        if not self._recent:
            return
        with self.clock.bucket("train"):  # an interrupted run has not waited for the device yet
            values = torch.stack([result.values for result in self._recent]).tolist()
        first = self.state.step - len(values)
        with self._interrupt.deferred():
            for step, (row, result) in enumerate(zip(values, self._recent, strict=True), first):
                if not math.isfinite(row[0]):
                    self.state.step = step
                    if self.state.pending:
                        self._log()
                    raise Diverged(step)
                predictions = int(result.predictions)
                self.state.pending.append([*row, predictions])
                self.state.examples += int(result.examples)
                self._predictions += predictions
            self._recent.clear()

    def _log(self) -> None:
        """Write and show a row: means over the pending steps, the last learning rate."""
        state = self.state
        with self.clock.bucket("log"), self._interrupt.deferred():
            objective, *sums, grad_norm, count = (sum(column) for column in zip(*state.pending, strict=True))
            steps = len(state.pending)
            metrics = {name: total / count for name, total in zip(state.metrics, sums, strict=True)}
            means = {
                "objective": objective / steps,
                "lr": self._stepper.rates(state.step - 1)["lr"],
                "grad_norm": grad_norm / steps,
                "predictions": int(count),
            }
            row = self._row("train", metrics | means)
            self._record([row])
            state.pending = []
            seconds = self.clock.time - self._first_seconds
            done = {"steps": state.step - self._first_step, self.task.predictions: self._predictions}
            rates = {name: count / seconds if seconds else 0.0 for name, count in done.items()}
            left = (self._spent() - self._first_spent) * (self.settings.max_steps - state.step) / max(1, done["steps"])
            self._display.update(row, rates, left)

    def _spent(self) -> float:
        """Return the seconds of the run so far, without those of warming up, which are the same for any length."""
        return sum(seconds for name, seconds in self.clock.seconds.items() if name != "warmup")

    def _evaluate(self, extents: Sequence[Extent]) -> None:
        """Evaluate the model; write a row per split and the task's files; save the model if it is the best so far."""
        results: dict[str, dict[str, float]] = {}
        with self.clock.bucket("eval"):
            self.model.eval()
            try:
                with torch.no_grad(), autocast(self.settings.precision, self.settings.device):
                    for extent in extents:
                        results |= self.task.evaluate(self.model, extent)
            finally:
                self.model.train()
        with self._interrupt.deferred():
            with self.clock.bucket("log"):
                rows = [self._row(split, metrics) for split, metrics in results.items()]
                self._record(rows, self.task.files)
                for row in rows:
                    self._display.report_evaluation(row)
            self.state.evaluated = self.state.step
            value = target_value(results, self.task.target)
            if value is not None:
                self._save_best(value)

    def _save_best(self, value: float) -> None:
        """Save the model if ``value``, the target's metric on the selection split, is finite and the best so far."""
        state, target = self.state, self.task.target
        sign = 1 if target.mode == "min" else -1
        if math.isfinite(value) and (state.best is None or sign * value < sign * state.best):
            state.best = value
            if self._writer is not None:
                with self.clock.bucket("checkpoint"):
                    best = {"step": state.step, target.metric: value, "model": self.model.state_dict()}
                    self._writer.save_best(best)

    def _checkpoint(self) -> None:
        if self._writer is None:
            return
        with self.clock.bucket("checkpoint"), self._interrupt.deferred():
            payload = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "clock": dict(self.clock.seconds),
                "state": dataclasses.asdict(self.state),
            }
            self._writer.save(payload, self.state.step)

    def _row(self, split: str, metrics: Mapping[str, float]) -> record.Row:
        state = self.state
        epoch = round(state.step / self.task.steps_per_epoch, 6)
        progress = {"step": state.step, "epoch": epoch, "examples": state.examples, "split": split}
        seconds = {name: round(seconds, 6) for name, seconds in self.clock.seconds.items()}
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON has no NaN
        return progress | finite | {"seconds": seconds}

    def _record(self, rows: list[record.Row], files: Mapping[str, str] = {}) -> None:
        """Write rows of metrics, and files of the task by name."""
        if self._writer is not None:
            self.state.metrics_bytes = self._writer.append(rows, files)
