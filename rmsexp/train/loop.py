"""The training loop: train and evaluate a task's model, time it, and write a record that can be continued."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rmsexp import record
from rmsexp.train import checkpoint
from rmsexp.train.clock import Clock
from rmsexp.train.contention import Contention
from rmsexp.train.interrupt import Interrupt, Interrupted
from rmsexp.train.loggers import Logger
from rmsexp.train.progress import ProgressDisplay
from rmsexp.train.step import WARMUP_STEPS, Stepper, autocast, synchronise


@dataclass
class State:
    """The progress of a run, as in a checkpoint.

    ``pending``: for each step since the last training row, a list of its objective, the sum of each of ``metrics``, the
    norm of the gradient, and the number of predictions. ``metrics_bytes``: the length of ``metrics.jsonl``.
    """

    step: int = 0  # number of steps taken
    examples: int = 0  # number of training examples used
    evaluated: int = -1  # the step of the last evaluation, or -1 before the first
    best: float | None = None  # best value so far of the metric that selects the best checkpoint
    pending: list[list[float]] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    metrics_bytes: int = 0


class Diverged(Exception):
    """The training objective is not finite. ``step``: the first step, counted from 0, in which this happened."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the training objective of step {step} is not finite")
        self.step = step


class Start(NamedTuple):
    """Where training begins or continues. ``warning``: a message if a newer checkpoint was damaged."""

    state: State
    clock: Clock
    warning: str | None


def restore(stepper: Stepper, folder: record.RunFolder) -> Start:
    """Load the newest undamaged checkpoint of a run into the stepper's model and optimiser; drop later metrics.

    Without a checkpoint, initialise the model and drop all metrics.

    Raises: checkpoint.CheckpointError if all checkpoints are damaged; ValueError if metrics of the checkpoint's steps
    are missing.
    """
    payload, warning = checkpoint.load(folder.checkpoints)
    if payload is None:
        folder.metrics_path.unlink(missing_ok=True)
        stepper.task.initialise(stepper.model)
        return Start(State(), Clock(), warning)
    stepper.model.load_state_dict(payload["model"])
    stepper.optimizer.load_state_dict(payload["optimizer"])
    start = Start(State(**payload["state"]), Clock(payload["clock"]), warning)
    folder.cut_metrics(start.state.metrics_bytes)
    return start


class Trainer:
    """Trains a model on a task, from a :class:`Start` on. ``after_checkpoint`` is called after each checkpoint."""

    def __init__(
        self,
        stepper: Stepper,
        start: Start,
        folder: record.RunFolder,
        interrupt: Interrupt,
        contention: Contention,
        loggers: Sequence[Logger],
        display: ProgressDisplay,
        after_checkpoint: Callable[[], None],
    ) -> None:
        self.task, self.model, self.optimizer = stepper.task, stepper.model, stepper.optimizer
        self.settings, self.state, self.clock = stepper.settings, start.state, start.clock
        self._stepper, self._folder, self._interrupt, self._contention = stepper, folder, interrupt, contention
        self._loggers, self._display, self._after_checkpoint = loggers, display, after_checkpoint
        self._first_step, self._first_seconds = self.state.step, self.clock.time
        self._recent: list[tuple[Tensor, int, int]] = []  # per step: values (on the device), predictions, examples

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
                if state.evaluated < state.step and (done or state.step % settings.eval_every == 0):
                    self._evaluate()
                if done or (state.step and state.step % settings.checkpoint_every == 0):
                    self._checkpoint()
                if done:
                    return
                self._train_to(self._next_edge())
        except Interrupted as stop:
            if not stop.torn:
                with self._interrupt.deferred():
                    self._collect()
                    self._checkpoint()
            raise

    def _next_edge(self) -> int:
        intervals = (self.settings.log_every, self.settings.eval_every, self.settings.checkpoint_every)
        return min(self.settings.max_steps, *((self.state.step // every + 1) * every for every in intervals))

    def _warm_up(self) -> None:
        """Take the next step a few times, so that times exclude compilation and cold caches; then restore the state."""
        if self.state.step >= self.settings.max_steps:
            return
        model = {name: value.clone() for name, value in self.model.state_dict().items()}
        optimizer = copy.deepcopy(self.optimizer.state_dict())
        try:
            for _ in range(WARMUP_STEPS):
                self._update(self.state.step, self.task.batches(self.state.step))
            synchronise(self.settings.device)
        finally:
            with self._interrupt.deferred():
                self.model.load_state_dict(model)
                self.optimizer.load_state_dict(optimizer)
                self.optimizer.zero_grad()

    def _train_to(self, edge: int) -> None:
        """Train up to step ``edge``, then fetch the values of these steps. The host waits for the device only then."""
        state = self.state
        with self._contention.watch():
            while state.step < edge:
                with self._interrupt.deferred():
                    with self.clock.bucket("data"):
                        batches = self.task.batches(state.step)
                    with self.clock.bucket("train"):
                        values, count = self._update(state.step, batches)
                    self._recent.append((values, count, sum(self.task.examples(batch) for batch in batches)))
                    state.step += 1
            with self.clock.bucket("train"):
                synchronise(self.settings.device)
        self._collect()

    def _update(self, step: int, batches: Sequence[Any]) -> tuple[Tensor, int]:
        result = self._stepper.take(step, batches)
        self.state.metrics = result.metrics
        return result.values, result.predictions

    def _collect(self) -> None:
        """Fetch the values of the steps since the last call from the device, and add them to the pending ones.

        Raises: Diverged at the first step whose objective is not finite, after logging the steps before it.
        """
        if not self._recent:
            return
        values = torch.stack([values for values, _, _ in self._recent]).tolist()
        first = self.state.step - len(values)
        with self._interrupt.deferred():
            for step, (row, (_, count, examples)) in enumerate(zip(values, self._recent, strict=True), first):
                if not math.isfinite(row[0]):
                    self.state.step = step
                    if self.state.pending:
                        self._log()
                    raise Diverged(step)
                self.state.pending.append([*row, count])
                self.state.examples += examples
            self._recent.clear()

    def _log(self) -> None:
        """Write and show a training row: means over the pending steps, and the last step's learning rate."""
        state = self.state
        with self.clock.bucket("log"), self._interrupt.deferred():
            objective, *sums, norm, count = (sum(column) for column in zip(*state.pending, strict=True))
            steps = len(state.pending)
            metrics = {name: total / count for name, total in zip(state.metrics, sums, strict=True)}
            rate = self.optimizer.param_groups[0]["lr"]
            means = {"objective": objective / steps, "lr": rate, "grad_norm": norm / steps}
            row = self._row("train", metrics | means)
            self._record([row])
            state.pending = []
            seconds = self.clock.time - self._first_seconds
            steps_per_second = (state.step - self._first_step) / seconds if seconds else 0.0
            self._display.update(row, steps_per_second)

    def _evaluate(self) -> None:
        """Evaluate the model; write a row per split and the task's files; save the model if it is the best so far."""
        with self.clock.bucket("eval"):
            self.model.eval()
            try:
                with torch.no_grad(), autocast(self.settings.precision, self.settings.device):
                    results = self.task.evaluate(self.model)
            finally:
                self.model.train()
        with self._interrupt.deferred():
            with self.clock.bucket("log"):
                rows = [self._row(split, metrics) for split, metrics in results.items()]
                self._record(rows)
                for name, text in self.task.files.items():
                    record.write_atomic(self._folder.path / name, text)
                for row in rows:
                    self._display.report_evaluation(row)
            self.state.evaluated = self.state.step
            target = self.task.target
            self._save_best(results[target.selection][target.metric])

    def _save_best(self, value: float) -> None:
        """Save the model if ``value``, the target's metric on the selection split, is finite and the best so far."""
        state, target = self.state, self.task.target
        sign = 1 if target.mode == "min" else -1
        if math.isfinite(value) and (state.best is None or sign * value < sign * state.best):
            state.best = value
            with self.clock.bucket("checkpoint"):
                best = {"step": state.step, target.metric: value, "model": self.model.state_dict()}
                checkpoint.save_best(self._folder.checkpoints, best)

    def _checkpoint(self) -> None:
        with self.clock.bucket("checkpoint"), self._interrupt.deferred():
            payload = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "clock": dict(self.clock.seconds),
                "state": dataclasses.asdict(self.state),
            }
            checkpoint.save(self._folder.checkpoints, payload)
            self._after_checkpoint()

    def _row(self, split: str, metrics: Mapping[str, float]) -> record.Row:
        state = self.state
        epoch = round(state.step / self.task.steps_per_epoch, 6)
        progress = {"step": state.step, "epoch": epoch, "examples": state.examples, "split": split}
        seconds = {name: round(seconds, 6) for name, seconds in self.clock.seconds.items()}
        return progress | _finite(metrics) | {"seconds": seconds}

    def _record(self, rows: list[record.Row]) -> None:
        self.state.metrics_bytes = self._folder.append(rows)
        for logger in self._loggers:
            for row in rows:
                logger.log(row)


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Replace values that are not finite by None, since JSON has no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
