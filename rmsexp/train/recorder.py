"""Record your own training loop as a run, which reports then show beside other runs: :class:`Recorder`."""

import json
import math
import operator
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Literal, Self

import torch

from rmsexp.config import ConfigError, expanded
from rmsexp.records import record
from rmsexp.records.frames import names
from rmsexp.records.record import Status
from rmsexp.rules.quantities import Quantity
from rmsexp.system import atomic
from rmsexp.system.clock import Clock
from rmsexp.system.readers import yaml_text
from rmsexp.task import Target
from rmsexp.train import provenance
from rmsexp.train.contention import Contention
from rmsexp.train.device import available
from rmsexp.train.step import synchronise


class Recorder:
    """Records losses and metrics of a training loop against steps and against the time of training.

    The clock runs in the ``with`` statement, except in :meth:`evaluating` and :meth:`log`::

        with rmsexp.Recorder("my_model", norm="rms", seed=0) as recorder:
            for step, batch in enumerate(batches, 1):
                loss = training_step(model, batch)
                if step % 10 == 0:
                    recorder.log(step, loss=loss.item())
                if step % 100 == 0:
                    with recorder.evaluating():
                        recorder.log(step, "valid", loss=evaluate(model))

    The run is ``<results>/<task>/<setting>/<norm>/seed<seed>/``. Runs of one task and setting are drawn together by
    ``python -m rmsexp.report``. A run ends as finished; as diverged if a value that was logged is not finite; and if an
    exception ends the ``with`` statement as interrupted (KeyboardInterrupt) or failed.

    Args:
        task: The name of what is trained.
        norm: The name of the norm, and what else differs between the runs, as in ``rms+lr=0.01``.
        seed: The seed of the run.
        setting: The name of what the runs that are compared have in common, such as their sizes.
        results: The folder of all records.
        target: Split, metric and mode ("min" or "max") of the comparison.
        config: Values that ``config.yaml`` shall have. Those that YAML cannot hold, such as paths, become text.
        device: Where the model is; by default the GPU if there is one.
        force: Whether a run with the same name is moved aside, to ``seed<seed>.old<number>``.

    Raises: ConfigError for a name that cannot be that of a folder, and without ``force`` if there is such a run;
    RunLockedError if another process writes it.
    """

    def __init__(
        self,
        task: str,
        norm: str,
        seed: int = 0,
        *,
        setting: str = "own",
        results: str | Path = "results",
        target: tuple[str, str, Literal["min", "max"]] = ("valid", "loss", "min"),
        config: Mapping[str, object] | None = None,
        device: torch.device | str | None = None,
        force: bool = False,
    ) -> None:
        seed = operator.index(seed)
        name = f"{task}/{setting}/{norm}/seed{seed}"
        if len(parts := name.split("/")) != 4 or not all(part.strip(".") for part in parts):
            raise ConfigError(f"{name} cannot be the folder of a run: task, setting and norm must be names of folders")
        self._files = record.RunFolder(expanded(results) / name)
        self._device = available(device)
        values = {**(config or {}), "task": task, "norm": norm, "seed": seed}
        plain = json.dumps(values, default=lambda x: x.item() if getattr(x, "ndim", None) == 0 else str(x))
        self._config = yaml_text(json.loads(plain))
        self._names = {"task": task, "norm": norm.partition("+")[0], "setting": setting, "series": norm, "seed": seed}
        self._target, self._force = Target(target[0], target[1], target[2], selection=target[0]), force
        self._running, self._lock = ExitStack(), ExitStack()
        self._is_paused: bool | None = None  # None outside of the with statement

    def __enter__(self) -> Self:
        self._step, self._diverged, self._seen = 0, "", dict[tuple[str, str], None]()
        self._clock, self._contention = Clock(), Contention(self._device)
        with ExitStack() as lock:  # which is freed if the run cannot begin
            lock.enter_context(self._files.lock.held())
            if self._files.run_path.exists() or self._files.metrics_path.exists():
                if not self._force:
                    raise ConfigError(f"{self._files.path} has a run already; force=True moves it aside")
                self._files.move_aside()
            self._files.path.mkdir(parents=True, exist_ok=True)
            atomic.write_atomic(self._files.config_path, self._config)
            self._files.metrics_path.touch()
            self._session = provenance.session(self._device, 0)
            self._write("running")
            self._start()
            self._lock = lock.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        with self._lock:  # which is freed also if nothing can be written
            with nullcontext() if kind is None else suppress(RuntimeError):  # an error of CUDA is raised again
                self._stop()
            self._is_paused = None
            status: Status = "diverged" if self._diverged else "finished"
            if kind is not None:
                status = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
            self._write(status, self._diverged or (repr(error) if error is not None else None))

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context whose time does not count as training."""
        return self._paused("eval")

    def log(self, step: int, split: str = "train", **values: float) -> None:
        """Record values, such as ``loss=0.5``, after ``step`` training steps.

        ``split``: "train", or that of an evaluation. ``error`` and ``accuracy`` are fractions, which reports show in
        percent. Once a value is not finite, no more are recorded: the run diverged.

        Raises: RuntimeError outside of the ``with`` statement; ConfigError for a name that is taken, such as "time",
        and for a fraction above 1.
        """
        step = operator.index(step)
        if taken := [name for name in values if name in record.NO_METRICS]:
            raise ConfigError(f"{taken[0]} means something else in records; give the metric another name")
        if above := [name for name, value in values.items() if name in names.FRACTIONS and value > 1]:
            raise ConfigError(f"{above[0]} is a fraction, such as 0.92; divide by 100, or give the metric another name")
        with self._paused("log"):
            self._step = max(self._step, step)
            lost = next((name for name, value in values.items() if not math.isfinite(value)), None)
            if lost is not None:
                self._diverged = self._diverged or f"{split} {lost} is {values[lost]} at step {step}"
            if not self._diverged:
                self._seen |= dict.fromkeys((split, name) for name in values)
                seconds = {name: round(value, 6) for name, value in self._clock.seconds.items()}
                numbers = {name: float(value) for name, value in values.items()}
                self._files.append([{"step": step, "split": split, **numbers, "seconds": seconds}])

    @contextmanager
    def _paused(self, bucket: str) -> Iterator[None]:
        """Return a context in which the clock does not count training; within another one it changes nothing."""
        if self._is_paused is None:
            raise RuntimeError("a Recorder works inside its with statement only; call log and evaluating there")
        if self._is_paused:
            yield
            return
        self._stop()
        try:
            with self._clock.bucket(bucket):
                yield
        finally:
            self._start()

    def _start(self) -> None:
        self._running.enter_context(self._contention.watch())
        self._running.enter_context(self._clock.bucket("train"))
        self._is_paused = False

    def _stop(self) -> None:
        try:
            synchronise(self._device)
        finally:
            self._running.close()
            self._is_paused = True

    def _write(self, status: Status, error: str | None = None) -> None:
        """Write ``run.json`` and ``status.json``."""
        quantities = [Quantity(split, metric, metric, names.scale_and_unit(metric)[1]) for split, metric in self._seen]
        session = self._session | {"contention": self._contention.report(), "comparable": True}
        facts = {
            "format": 1,
            **self._names,
            "scale": self._names["setting"],
            "impl": "own",
            "recipe_steps": self._step,
            "target": asdict(self._target),
            "quantities": [asdict(quantity) for quantity in quantities],
            "dataset": {"name": "own", "digest": "", "builtin": False},
            "parameters": {"total": None},
            "sessions": [session],
        }
        atomic.write_json(self._files.run_path, facts)
        self._files.write_status(status, self._step, error, run="/".join(self._files.path.parts[-4:]))
