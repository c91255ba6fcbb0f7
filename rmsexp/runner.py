"""Does one run under its lock: data, model, training, record, status."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from rmsexp import config, record, tasks
from rmsexp.data import DataError
from rmsexp.train import loggers, provenance
from rmsexp.train.checkpoint import CheckpointError
from rmsexp.train.device import compile_model, set_up_device
from rmsexp.train.interrupt import Interrupt, Interrupted
from rmsexp.train.loop import Diverged, Trainer
from rmsexp.train.progress import ProgressDisplay
from rmsexp.train.step import Settings

EXPECTED = (DataError, CheckpointError, ValueError)  # their messages say what to do


class RefusedError(ValueError):
    """What was asked of a run does not fit what its folder holds, which stays as it is."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended. ``signum`` is set where a signal ended it."""

    status: record.Status
    step: int
    error: str | None = None
    signum: int | None = None
    already: bool = False  # it had ended before


def execute(job: config.Job, n_jobs: int = 1) -> Outcome:
    """Begins, continues or finds finished the run of a job; ``n_jobs`` such runs share the machine.

    Raises: record.RunLockedError if another process writes this run.
    """
    folder = job.folder
    lock = record.Lock(folder)
    try:
        if job.config.force and folder.exists():
            _move_aside(folder)
        done = _ended(folder, job.config.max_steps)
        return done if done is not None else _execute_locked(job, folder, n_jobs)
    finally:
        lock.release()


def _ended(folder: Path, max_steps: int) -> Outcome | None:
    status = _status(folder)
    if status["status"] == "diverged" or (status["status"] == "finished" and status["step"] >= max_steps):
        return Outcome(status["status"], status["step"], status.get("error"), already=True)
    return None


def _status(folder: Path) -> dict[str, Any]:
    """How an earlier process left the run. One that cannot be read costs nothing: the checkpoints say how far."""
    try:
        return record.read_json(folder / record.STATUS)
    except (FileNotFoundError, ValueError):
        return {"status": "interrupted", "step": 0}


class _Journal:
    """Keeps ``status.json`` and ``run.json`` of a run true while this process works on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.step = _status(folder)["step"]

    def status(self, status: record.Status, error: str | None = None) -> None:
        content = {"status": status, "step": self.step, "error": error, "process": os.getpid()}
        record.write_json(self.folder / record.STATUS, content)

    def open(self, job: config.Job, trainer: Trainer, say: Callable[[str], None]) -> None:
        """Writes config and identity, and adds this process to the sessions that got the run to where it is."""
        self._trainer, self._identity = trainer, _identity(job, trainer)
        step = trainer.state.step
        earlier = _earlier_sessions(self.folder, self._identity["dataset"]["digest"])
        self._sessions = [session for session in earlier if session["from_step"] < step]
        self._session = provenance.session(trainer.settings.device, step)
        changed = provenance.changed(self._sessions[-1], self._session) if self._sessions else []
        self._session["comparable"] = not changed
        if changed:
            say(f"warning: going on under other {', '.join(changed)}; this run's time stays out of the figures")
        if step:
            say(f"going on at step {step}")
        record.write_atomic(self.folder / record.CONFIG, yaml.safe_dump(job.resolved, sort_keys=False))
        self.save()

    def save(self) -> None:
        """Called at the start and after each checkpoint."""
        self.step = self._trainer.state.step
        session = self._session | {"contention": self._trainer.contention.report()}
        record.write_json(self.folder / record.RUN, self._identity | {"sessions": [*self._sessions, session]})
        self.status("running")


def _execute_locked(job: config.Job, folder: Path, n_jobs: int) -> Outcome:
    folder.mkdir(parents=True, exist_ok=True)
    record.remove_temporaries(folder)
    interrupt, journal, before = Interrupt(), _Journal(folder), _status(folder)
    try:
        with interrupt.install():
            _check_same_config(folder, job.resolved)
            journal.status("running")
            outcome = _train(job, journal, n_jobs, interrupt)
    except Interrupted as stop:
        outcome = Outcome("interrupted", journal.step, str(stop), stop.signum)
    except RefusedError as error:
        record.write_json(folder / record.STATUS, before)
        return Outcome("failed", journal.step, str(error))
    except Exception as error:
        outcome = Outcome("failed", journal.step, _message(error, folder))
    try:
        journal.status(outcome.status, outcome.error)
    except OSError as error:  # a full disk must not hide how the run ended
        print(f"the status of {folder} could not be written ({error.strerror})", file=sys.stderr)
    return outcome


def _train(job: config.Job, journal: _Journal, n_jobs: int, interrupt: Interrupt) -> Outcome:
    cfg, folder = job.config, journal.folder
    device = set_up_device(cfg, n_jobs)
    task = tasks.make(job, device)
    with closing(ProgressDisplay(f"{job.series} seed{cfg.seed}", cfg.max_steps)) as display:
        builtin = f"built-in data ({task.dataset.name}); the paper's setting is scale=paper"
        data = builtin if task.dataset.builtin else f"data {task.dataset.name}"
        display.say(f"task={cfg.task} norm={job.series} scale={job.setting} seed={cfg.seed}: {data}")
        _earlier_sessions(folder, task.dataset.digest)  # refuses other data before they are preprocessed
        task.prepare(display.say)
        model = task.build(job.norm)
        settings = Settings.of(cfg, device)
        trainer = Trainer(task, model, task.optimizer(model), cfg.schedule, settings, folder, interrupt)
        trainer.contention.shared = n_jobs > 1
        warning = trainer.start()
        compile_model(model, cfg)
        if warning:
            display.say(f"warning: {warning}")
        journal.open(job, trainer, display.say)
        views = loggers.make(cfg.logger, folder, job.resolved, trainer.state.step)
        return _run(trainer, journal, views, display)


def _run(trainer: Trainer, journal: _Journal, views: list[loggers.Logger], display: ProgressDisplay) -> Outcome:
    status: record.Status = "failed"
    error = None
    try:
        trainer.run(views, display, journal.save)
        status = "finished"
    except Diverged as divergence:
        status, error = "diverged", str(divergence)
    except Interrupted:
        status = "interrupted"
        raise
    finally:
        journal.step = trainer.state.step
        for view in views:
            view.close(status)
    return Outcome(status, trainer.state.step, error)


def _identity(job: config.Job, trainer: Trainer) -> dict[str, Any]:
    """What ``run.json`` says of a run but for its sessions."""
    cfg, task = job.config, trainer.task
    return {
        "format": 1,
        "task": cfg.task,
        "norm": job.norm.name,
        "scale": cfg.scale,
        "seed": cfg.seed,
        "setting": job.setting,
        "series": job.series,
        "impl": job.norm.effective_impl,
        "recipe_steps": cfg.schedule.steps,
        "target": asdict(task.target),
        "dataset": asdict(task.dataset),
        "notes": dict(task.notes),
        "parameters": _parameters(trainer.model),
    }


def _earlier_sessions(folder: Path, digest: str) -> list[dict[str, Any]]:
    """The processes that worked on this run before. Raises: RefusedError if they had other data."""
    path = folder / record.RUN
    if not path.exists():
        return []
    earlier = record.read_json(path)
    if earlier["dataset"]["digest"] != digest:
        raise RefusedError(
            f"{folder} was trained on other data (digest {earlier['dataset']['digest'][:12]}, now {digest[:12]}); "
            "give it the old data.root, or start it anew with force=true"
        )
    sessions: list[dict[str, Any]] = earlier["sessions"]
    return sessions


def _check_same_config(folder: Path, resolved: dict[str, Any]) -> None:
    path = folder / record.CONFIG
    if not path.exists():
        return
    changed = config.differences(resolved, yaml.safe_load(path.read_text()))
    if changed:
        key, value = next(iter(changed.items()))
        raise RefusedError(
            f"{folder} was begun with another config ({key} is now {value}; {len(changed)} differ); "
            "start it anew with force=true, which keeps the old one beside it"
        )


def _move_aside(folder: Path) -> None:
    number = 0
    while (target := folder.with_name(f"{folder.name}.old{number}")).exists():
        number += 1
    folder.rename(target)


def _parameters(model: nn.Module) -> dict[str, Any]:
    modules: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        modules[name.partition(".")[0]] += parameter.numel()
    return {"total": modules.total(), "modules": dict(modules)}


def _message(error: Exception, folder: Path) -> str:
    """One line that says what was wrong; the traceback of what was not foreseen goes to a file."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full ({error.filename or folder}); free some space and the same command goes on"
    if isinstance(error, EXPECTED):
        return str(error)
    path = folder / "traceback.txt"
    record.write_atomic(path, traceback.format_exc())
    return f"{type(error).__name__}: {error} (traceback in {path})"
