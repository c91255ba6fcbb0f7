"""The training loop: train and evaluate a task's model, time it, and write a record that can be continued."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rmsexp.config import score
from rmsexp.records import record
from rmsexp.system import atomic, process
from rmsexp.system.clock import TIMED, Clock
from rmsexp.system.machine_lock import pause
from rmsexp.task import SAMPLE, WHOLE, Extent, MicroBatches, TaskError, checked, target_value
from rmsexp.train import checkpoint, monitor, provenance
from rmsexp.train.contention import Contention
from rmsexp.train.group import LostError
from rmsexp.train.progress import ProgressDisplay
from rmsexp.train.step import WARMUP_STEPS, Stepper, StepResult, autocast, require_calls_of_add, synchronise
from rmsexp.train.writer import Writer

# keys that set the steps at which all processes communicate
EDGES = ("max_steps", "log_every", "eval_every", "checkpoint_every")
SEVERITY = ("undisturbed", "unknown", "disturbed")


@dataclass
class State:
    """The progress of a run, as saved in its checkpoints.

    ``pending``: for each step since the last training row, a list of its objective, the sum of each metric, the norm of
    the gradient, and the number of predictions. ``metrics``: their names. ``metrics_bytes``: size of ``metrics.jsonl``.
    """

    step: int = 0  # number of steps taken
    examples: int = 0  # number of training examples used
    evaluated: int = -1  # the step of the last evaluation, or -1 before the first
    best: float | None = None  # best value so far of the metric that selects the best checkpoint
    pending: list[list[Any]] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    metrics_bytes: int = 0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> State:
        """Return the state from a checkpoint's entry ``state``, unchecked. Raises: KeyError if a field is missing."""
        return cls(**{each.name: values[each.name] for each in fields(cls)})


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

    Return the checkpoint's state and clock. Without a checkpoint, initialise the model and return new ones; metrics are
    removed if ``saved_step`` is 0, and else renamed. If the best model so far cannot be used, or is of a later step,
    whose metrics are dropped, the next evaluation replaces it.

    ``identity``: that of the run's checkpoints. ``saved_step``: the step of the last checkpoint according to the run's
    status; 0: there is none; None: not known. ``warn``: gets messages about checkpoints that are damaged or missing.

    Raises: checkpoint.CheckpointError if there are checkpoints and none can be used; ReportedError if one cannot be
    read now, but may be intact; RunLockedError if another process may have taken over the run.
    """

    def use(payload: checkpoint.Payload) -> tuple[State, Clock]:
        state, clock = State.of(payload["state"]), Clock(payload["clock"])
        stepper.model.load_state_dict(payload["model"])
        stepper.optimizer.load_state_dict(payload["optimizer"])
        files.cut_metrics(state.metrics_bytes)
        return state, clock

    files.lock.check()  # preparing the data may have taken hours; what follows cuts the metrics
    restored, warnings = checkpoint.load(files.checkpoints, identity, use)
    for warning in warnings:
        warn(warning)
    if restored is None:
        metrics, problem = files.metrics_path, f"{files.checkpoints} has no checkpoint: the run begins again at step 0"
        if saved_step == 0 and metrics.is_file():  # a folder of this name is kept, too
            metrics.unlink()
        elif metrics.exists():
            warn(f"{problem}; its metrics are kept as {atomic.move_aside(metrics).name}")
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


def share_start(
    stepper: Stepper,
    start: tuple[State, Clock] | None,
    identity: checkpoint.Identity,
    resolved: Mapping[str, Any],
    impl: str,
) -> tuple[State, Clock]:
    """Copy the model and optimiser of process 0 to all processes; return its state and clock in each of them.

    ``start``: what :func:`restore` returned in process 0; None in the others. The other arguments, such as ``impl``,
    the implementation of the norms, are those of this process.

    Raises: ReportedError if the processes differ in what results depend on, or in the steps at which they communicate.
    """
    group: Any = stepper.group
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


def evaluated_at(config: Any, step: int, last: bool) -> Sequence[Extent]:
    """Return what is evaluated after ``step`` steps, perhaps nothing. ``last``: whether the run ends there."""
    if config.evaluation is None:
        return [WHOLE] if last or step % config.eval_every == 0 else []
    points = score.steps(config.schedule.steps)
    if last or step in points[-score.SCORED :]:
        return [SAMPLE, Extent(test=config.evaluation == "scored")]
    return [SAMPLE] if step in points else []


class Trainer:
    """Trains a model on a task, from a state on.

    ``state``, ``clock``: those that :func:`restore` returns. ``writer``: writes the record; None if another process
    does. ``pauses``: whether training waits, before each logging interval, while another process measures times.
    ``evaluates``: whether the model is evaluated.

    Several processes take the same steps, and process 0 alone has a writer. A signal to any of them stops all after the
    same step. If one is lost, process 0 saves the last complete step, unless it computes on a GPU.
    """

    def __init__(
        self,
        stepper: Stepper,
        state: State,
        clock: Clock,
        writer: Writer | None,
        *,
        contention: Contention,
        display: ProgressDisplay,
        pauses: bool = False,
        evaluates: bool = True,
    ) -> None:
        self.task, self.model, self.optimizer = stepper.task, stepper.model, stepper.optimizer
        self.config, self.state, self.clock = stepper.config, state, clock
        if self.config.compile:
            self.model.compile(dynamic=True)  # in place, so names stay; one compilation serves batches of all shapes
        self._stepper, self._writer, self._contention = stepper, writer, contention
        self._group, self._interrupt = stepper.group, stepper.group.interrupt
        self._display, self._pauses, self._evaluates = display, pauses, evaluates
        self._first_step, self._first_seconds, self._predictions = state.step, clock.time, 0
        self._first_spent = self._spent()
        self._monitor: monitor.Monitor | None = None
        if writer is not None and stepper.config.monitor:
            self._monitor = monitor.Monitor(self.model, writer.files.path, state.evaluated)
        self._recent: list[StepResult] = []  # of the steps since the last edge, with values on the device

    def run(self) -> None:
        """Train up to ``max_steps``. Log, evaluate and save checkpoints at their intervals and at the end.

        Raises: Diverged if the objective of a step is not finite; Interrupted for a signal, after saving a checkpoint;
        LostError if another process is lost.
        """
        with self._interrupt.deferred() if self._group.size > 1 else nullcontext():
            try:
                self._train()
            except Diverged:  # in all processes, without a last checkpoint
                self._compare_contention()
                raise
            except LostError:
                if self._writer is not None and self._stepper.device.type == "cpu":  # on a GPU it may be incomplete
                    self._fetch()
                    self._save()
                    self._display.report(f"saved step {self.state.step}")
                raise

    def _train(self) -> None:
        state, config = self.state, self.config
        try:
            with self.clock.bucket("warmup"):
                self._warm_up()
            while True:
                done = state.step >= config.max_steps
                if state.pending and (done or state.step % config.log_every == 0):
                    self._log()
                extents = evaluated_at(config, state.step, done) if self._evaluates else []
                if state.evaluated < state.step and extents:
                    self._evaluate(extents)
                if done or (state.step and state.step % config.checkpoint_every == 0):
                    self._checkpoint()
                if done:
                    return
                if self._pauses:
                    pause(self._display.report)
                self._train_to(self._next_edge())
        except process.Interrupted:
            with self._interrupt.deferred():
                self._collect()
                self._checkpoint()
            raise

    def _next_edge(self) -> int:
        """Return the next edge: a step after which something is logged, evaluated or saved, or the last one."""
        config, steps = self.config, range(self.state.step + 1, self.config.max_steps)
        every = config.log_every, config.checkpoint_every
        edges = (step for step in steps if any(step % n == 0 for n in every) or evaluated_at(config, step, last=False))
        return next(edges, config.max_steps)

    def _warm_up(self) -> None:
        """Take the next step a few times, so that times exclude compilation and cold caches; then restore the state."""
        if self.state.step >= self.config.max_steps:
            return
        model = {name: value.clone() for name, value in self.model.state_dict().items()}
        optimizer = copy.deepcopy(self.optimizer.state_dict())
        try:
            with nullcontext() if self.config.compile else require_calls_of_add(self.model):
                for _ in range(WARMUP_STEPS):
                    self._update(self.state.step, self._batches(self.state.step))
            synchronise(self._stepper.device)
        finally:
            with self._interrupt.deferred():
                self.model.load_state_dict(model)
                self.optimizer.load_state_dict(optimizer)
                self.optimizer.zero_grad()

    def _train_to(self, edge: int) -> None:
        """Train up to step ``edge``; then fetch the values of these steps, for which the host waits for the device."""
        self._group.barrier()  # waiting here for what process 0 writes is no time of training
        with self._contention.watch():
            while self.state.step < edge:
                with self._interrupt.deferred():
                    self._step()
            with self.clock.bucket("train"):
                synchronise(self._stepper.device)
        self._collect()

    def _step(self) -> None:
        with self.clock.bucket("data"):
            batches = self._batches(self.state.step)
        with self.clock.bucket("train"):
            self._recent.append(self._update(self.state.step, batches))
        self.state.step += 1
        if self._group.stop is not None:
            raise process.Interrupted(self._group.stop)

    def _batches(self, step: int) -> MicroBatches:
        chosen = [self._group.chosen] if self._group.size > 1 else []  # a task of the user may always return all
        return checked(self.task.batches(step, *chosen), MicroBatches, "batches")

    def _update(self, step: int, batches: MicroBatches) -> StepResult:
        result = self._stepper.take(step, batches)
        if "loss" not in result.metrics:
            raise TaskError("the task's objective lacks loss among its sums")
        self.state.metrics = result.metrics
        return result

    def _collect(self) -> None:
        """Fetch the values of the last steps; the seconds of training become those of the slowest process."""
        self._fetch()
        clocks = self._group.gather(dict(self.clock.seconds))
        slowest = max(clocks, key=lambda seconds: sum(seconds[name] for name in TIMED))
        # process 0 alone writes, so only it knows the seconds of that
        self.clock.seconds = clocks[0] | {name: slowest[name] for name in TIMED}

    def _fetch(self) -> None:
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
            left = (self._spent() - self._first_spent) * (self.config.max_steps - state.step) / max(1, done["steps"])
            self._display.update(row, rates, left)

    def _spent(self) -> float:
        """Return the seconds of the run so far, without those of warming up, which are the same for any length."""
        return sum(seconds for name, seconds in self.clock.seconds.items() if name != "warmup")

    def _evaluate(self, extents: Sequence[Extent]) -> None:
        """Evaluate the model; write a row per split and the task's files; save the model if it is the best so far."""
        results: dict[str, dict[str, float]] = {}
        with self.clock.bucket("eval"):
            self._stepper.set_step(self.state.step)
            self.model.eval()
            try:
                with torch.no_grad(), autocast(self.config.precision, self._stepper.device):
                    for extent in extents:
                        for split, values in self.task.evaluate(self.model, extent).items():
                            # of NumPy's numbers no checkpoint could be read
                            results[split] = {name: float(value) for name, value in values.items()}
            finally:
                self.model.train()
            files: dict[str, str | bytes] = dict(self.task.files)
            if self._monitor is not None:
                step = self.state.step
                files[monitor.FILE] = self._monitor.text(step, lambda: self._stepper.loss(step, self._batches(step)[0]))
        with self._interrupt.deferred():
            with self.clock.bucket("log"):
                rows = [self._row(split, metrics) for split, metrics in results.items()]
                self._record(rows, files)
                for row in rows:
                    self._display.report_evaluation(row)
            state, target = self.state, self.task.target
            state.evaluated = state.step
            value, sign = target_value(results, target), 1 if target.mode == "min" else -1
            best = math.inf if state.best is None else sign * state.best
            if value is None or not math.isfinite(value) or sign * value >= best:
                return
            state.best = value
            if self._writer is not None:
                with self.clock.bucket("checkpoint"):
                    model = self.model.state_dict()
                    self._writer.save_best({"step": state.step, target.metric: value, "model": model})

    def _compare_contention(self) -> None:
        """Give the writer the contention of the process that was disturbed most. All processes must call this."""
        reports = self._group.gather(self._contention.report())
        if self._writer is not None:
            self._writer.contention = max(
                reports, key=lambda report: (SEVERITY.index(report["state"]), report["waited"] or 0.0)
            )

    def _checkpoint(self) -> None:
        self._compare_contention()
        self._save()

    def _save(self) -> None:
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
        if taken := [name for name in metrics if name in (*record.NO_METRICS, "epoch", "examples")]:
            raise TaskError(f"{taken[0]} means something else in records; give the metric another name")
        state = self.state
        epoch = round(state.step / self.task.steps_per_epoch, 6)
        progress = {"step": state.step, "epoch": epoch, "examples": state.examples, "split": split}
        seconds = {name: round(seconds, 6) for name, seconds in self.clock.seconds.items()}
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON has no NaN
        return progress | finite | {"seconds": seconds}

    def _record(self, rows: list[record.Row], files: Mapping[str, str | bytes] = {}) -> None:
        """Write rows of metrics, and files of the task by name."""
        if self._writer is not None:
            self.state.metrics_bytes = self._writer.append(rows, files)
