"""The training loop. It reads a task through its protocol, keeps time, and leaves a record that can be continued."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rmsexp import record
from rmsexp.train import checkpoint
from rmsexp.train.clock import Clock
from rmsexp.train.contention import Contention
from rmsexp.train.interrupt import Interrupt, Interrupted
from rmsexp.train.loggers import Logger
from rmsexp.train.progress import ProgressDisplay
from rmsexp.train.step import WARMUP_STEPS, Schedule, Settings, Stepper, autocast, synchronise
from rmsexp.train.task import Task


@dataclass
class State:
    """Where a run is. ``pending``: the values of each step since the last training row, ``(steps, values)``."""

    step: int = 0
    examples: int = 0
    evaluated: int = -1  # the step of the last evaluation
    best: float | None = None
    pending: list[list[float]] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)  # the names of those in `pending`
    metrics_bytes: int = 0


class Diverged(Exception):
    """The loss is no longer finite, for the first time in the given step."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the loss of step {step} is not finite")
        self.step = step


class Trainer:
    """Trains a model on a task, from the newest checkpoint in ``folder`` on."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        settings: Settings,
        folder: Path,
        interrupt: Interrupt,
    ) -> None:
        self.task, self.model, self.optimizer = task, model, optimizer
        self.settings, self.folder, self.interrupt = settings, folder, interrupt
        self._stepper = Stepper(task, model, optimizer, schedule, settings)
        self.state = State()
        self.clock = Clock()
        self.contention = Contention(settings.device)
        self._recent: list[tuple[Tensor, int, int]] = []  # of steps on the device: values, predictions, examples

    def start(self) -> str | None:
        """Loads the newest whole checkpoint, or initialises the model if there is none.

        Returns a warning if a newer checkpoint was damaged.
        """
        payload, warning = checkpoint.load(self.folder / record.CHECKPOINTS)
        if payload is None:
            (self.folder / record.METRICS).unlink(missing_ok=True)
            self.task.initialise(self.model)
            return warning
        self.model.load_state_dict(payload["model"])
        self.optimizer.load_state_dict(payload["optimizer"])
        self.clock.load(payload["clock"])
        self.state = State(**payload["state"])
        record.cut(self.folder / record.METRICS, self.state.metrics_bytes)
        return warning

    def run(self, loggers: Sequence[Logger], progress: ProgressDisplay, saved: Callable[[], None]) -> None:
        """Trains up to ``max_steps``; ``saved`` is called after each checkpoint.

        Raises: Diverged; Interrupted, after a checkpoint.
        """
        self._loggers, self._progress, self._saved = loggers, progress, saved
        state, settings = self.state, self.settings
        try:
            with self.clock.bucket("warmup"):
                self._warm_up()
            self._began = (state.step, self.clock.time)
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
                with self.interrupt.held():
                    self._collect()
                    self._checkpoint()
            raise

    def _next_edge(self) -> int:
        intervals = (self.settings.log_every, self.settings.eval_every, self.settings.checkpoint_every)
        return min(self.settings.max_steps, *((self.state.step // every + 1) * every for every in intervals))

    def _warm_up(self) -> None:
        """Runs some steps on real shapes, so that compilation and caches cost no step, and puts everything back."""
        if self.state.step >= self.settings.max_steps:
            return
        model = {name: value.clone() for name, value in self.model.state_dict().items()}
        optimizer = copy.deepcopy(self.optimizer.state_dict())
        try:
            for _ in range(WARMUP_STEPS):
                self._update(self.state.step, self.task.batches(self.state.step))
            synchronise(self.settings.device)
        finally:
            with self.interrupt.held():
                self.model.load_state_dict(model)
                self.optimizer.load_state_dict(optimizer)
                self.optimizer.zero_grad()

    def _train_to(self, edge: int) -> None:
        """Trains until ``edge``, then fetches what the steps computed; nothing waits for the device in between."""
        state = self.state
        with self.contention.watch():
            while state.step < edge:
                with self.interrupt.held():
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
        taken = self._stepper.take(step, batches)
        self.state.metrics = taken.metrics
        return taken.values, taken.predictions

    def _collect(self) -> None:
        """Fetches what the latest steps computed.

        Raises: Diverged at the first step whose objective or loss is not finite, once the steps before it are logged.
        """
        if not self._recent:
            return
        values = torch.stack([values for values, _, _ in self._recent]).tolist()
        first = self.state.step - len(values)
        with self.interrupt.held():
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
        """Writes the training row: means over the steps since the row before."""
        state = self.state
        with self.clock.bucket("log"), self.interrupt.held():
            objective, *sums, norm, count = (sum(column) for column in zip(*state.pending, strict=True))
            steps = len(state.pending)
            metrics = {name: total / count for name, total in zip(state.metrics, sums, strict=True)}
            rate = self.optimizer.param_groups[0]["lr"]
            means = {"objective": objective / steps, "lr": rate, "grad_norm": norm / steps}
            row = self._row("train", metrics | means)
            self._record([row])
            state.pending = []
            spent = self.clock.time - self._began[1]
            self._progress.update(row, (state.step - self._began[0]) / spent if spent else 0.0)

    def _evaluate(self) -> None:
        state, target = self.state, self.task.target
        with self.clock.bucket("eval"):
            self.model.eval()
            try:
                with torch.no_grad(), autocast(self.settings.precision, self.settings.device):
                    results = self.task.evaluate(self.model)
            finally:
                self.model.train()
        with self.interrupt.held():
            with self.clock.bucket("log"):
                rows = [self._row(split, metrics) for split, metrics in results.items()]
                self._record(rows)
                for name, text in self.task.files.items():
                    record.write_atomic(self.folder / name, text)
                for row in rows:
                    self._progress.evaluated(row)
            state.evaluated = state.step
            value = results[target.selection][target.metric]
            sign = 1 if target.mode == "min" else -1
            if math.isfinite(value) and (state.best is None or sign * value < sign * state.best):
                state.best = value
                with self.clock.bucket("checkpoint"):
                    best = {"step": state.step, target.metric: value, "model": self.model.state_dict()}
                    checkpoint.save_best(self.folder / record.CHECKPOINTS, best)

    def _checkpoint(self) -> None:
        with self.clock.bucket("checkpoint"), self.interrupt.held():
            payload = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "clock": dict(self.clock.seconds),
                "state": dataclasses.asdict(self.state),
            }
            checkpoint.save(self.folder / record.CHECKPOINTS, payload)
            self._saved()

    def _row(self, split: str, metrics: Mapping[str, float]) -> record.Row:
        state = self.state
        epoch = round(state.step / self.task.steps_per_epoch, 6)
        place = {"step": state.step, "epoch": epoch, "examples": state.examples, "split": split}
        seconds = {name: round(seconds, 6) for name, seconds in self.clock.seconds.items()}
        return place | _finite(metrics) | {"seconds": seconds}

    def _record(self, rows: list[record.Row]) -> None:
        self.state.metrics_bytes = record.append(self.folder / record.METRICS, rows)
        for logger in self._loggers:
            for row in rows:
                logger.log(row)


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN: a value that is not finite becomes null."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
