"""Does one run under its lock: data, model, training, record, status."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from rmsexp import config, record
from rmsexp.data import DataError
from rmsexp.train import loggers, provenance
from rmsexp.train.checkpoint import CheckpointError
from rmsexp.train.interrupt import Interrupt, Interrupted
from rmsexp.train.loop import Diverged, Settings, Trainer
from rmsexp.train.progress import ProgressDisplay

EXPECTED = (DataError, CheckpointError, ValueError)  # their messages say what to do


@dataclass(frozen=True)
class Outcome:
    """How a run ended. ``signum`` is set where a signal ended it."""

    status: str
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
        return {"status": "new", "step": 0}


def _execute_locked(job: config.Job, folder: Path, n_jobs: int) -> Outcome:
    folder.mkdir(parents=True, exist_ok=True)
    record.remove_temporaries(folder)
    interrupt, reached = Interrupt(), [_status(folder)["step"]]
    try:
        with interrupt.install():
            _check_same_config(folder, job.resolved)
            record.write_json(folder / record.STATUS, {"status": "running", "step": reached[0], "process": os.getpid()})
            outcome = _train(job, folder, n_jobs, interrupt, reached)
    except Interrupted as stop:
        outcome = Outcome("interrupted", reached[0], str(stop), stop.signum)
    except Exception as error:
        outcome = Outcome("failed", reached[0], _message(error, folder))
    try:
        record.write_json(
            folder / record.STATUS, {"status": outcome.status, "step": outcome.step, "error": outcome.error}
        )
    except OSError as error:  # a full disk must not hide how the run ended
        print(f"the status of {folder} could not be written ({error.strerror})", file=sys.stderr)
    return outcome


def _train(job: config.Job, folder: Path, n_jobs: int, interrupt: Interrupt, reached: list[int]) -> Outcome:
    cfg = job.config
    device = _device(cfg, n_jobs)
    task = import_module(f"rmsexp.tasks.{cfg.task}").Task(cfg, device)
    previous = _previous(folder, task.dataset.digest)
    data = f"built-in data ({task.dataset.name}); the paper's setting is scale=paper"
    display = ProgressDisplay(f"{job.series} seed{cfg.seed}", cfg.max_steps)
    display.say(
        f"task={cfg.task} norm={job.series} scale={job.setting} seed={cfg.seed}: "
        + (data if task.dataset.builtin else f"data {task.dataset.name}")
    )
    task.prepare(display.say)
    model = task.build(job.norm)
    settings = Settings.of(cfg, device)
    trainer = Trainer(task, model, task.optimizer(model), cfg.schedule, settings, folder, interrupt)
    trainer.contention.shared = n_jobs > 1
    warning = trainer.start()
    reached[0] = step = trainer.state.step
    if warning:
        display.say(f"warning: {warning}")
    session = provenance.session(device, step) | {"contention": trainer.contention.report()}
    sessions = [past for past in previous.get("sessions", []) if past["from_step"] < step]
    if sessions:
        changed = provenance.changed(sessions[-1], session)
        session["comparable"] = not changed
        if changed:
            display.say(f"warning: going on under other {', '.join(changed)}; this run's time stays out of the figures")
        display.say(f"going on at step {step}")
    else:
        session["comparable"] = True
    identity = {
        "format": 1,
        "task": cfg.task,
        "norm": job.norm.name,
        "scale": cfg.scale,
        "seed": cfg.seed,
        "setting": job.setting,
        "series": job.series,
        "impl": job.norm.impl,
        "recipe_steps": cfg.schedule.steps,
        "target": asdict(task.target),
        "dataset": asdict(task.dataset),
        "parameters": _parameters(model),
    }

    def save_session() -> None:
        reached[0] = trainer.state.step
        session["contention"] = trainer.contention.report()
        record.write_json(folder / record.RUN, identity | {"sessions": [*sessions, session]})
        record.write_json(folder / record.STATUS, {"status": "running", "step": reached[0], "process": os.getpid()})

    record.write_atomic(folder / record.CONFIG, yaml.safe_dump(job.resolved, sort_keys=False))
    save_session()
    views = loggers.make(cfg.logger, folder, job.resolved, step)
    status, error = "failed", None
    try:
        trainer.run(views, display, save_session)
        status = "finished"
    except Diverged as divergence:
        status, error = "diverged", str(divergence)
    except Interrupted:
        status = "interrupted"
        raise
    finally:
        reached[0] = trainer.state.step
        display.close()
        for view in views:
            view.close(status)
    return Outcome(status, trainer.state.step, error)


def _device(cfg: config.RunConfig, n_jobs: int) -> torch.device:
    name = cfg.device if cfg.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda, but torch sees no CUDA device here; use device=cpu or device=auto")
    torch.set_num_threads(cfg.threads or max(1, len(os.sched_getaffinity(0)) // n_jobs))
    if name == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = not cfg.deterministic
        # warn only: max_pool2d's backward is listed as nondeterministic, but windows that do not overlap add nothing up
        torch.use_deterministic_algorithms(cfg.deterministic, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return torch.device(name)


def _previous(folder: Path, digest: str) -> dict[str, Any]:
    """What an earlier process wrote of this run. Raises: ValueError if it was trained on other data."""
    path = folder / record.RUN
    if not path.exists():
        return {}
    previous = record.read_json(path)
    if previous["dataset"]["digest"] != digest:
        raise ValueError(
            f"{folder} was trained on other data (digest {previous['dataset']['digest'][:12]}, now {digest[:12]}); "
            "give it the old data.root, or start it anew with force=true"
        )
    return previous


def _check_same_config(folder: Path, resolved: dict[str, Any]) -> None:
    path = folder / record.CONFIG
    if not path.exists():
        return
    changed = config.differences(resolved, yaml.safe_load(path.read_text()))
    if changed:
        key, value = next(iter(changed.items()))
        raise ValueError(
            f"{folder} was begun with another config ({key} is now {value}; {len(changed)} differ); "
            "start it anew with force=true, which keeps the old one beside it"
        )


def _move_aside(folder: Path) -> None:
    number = 0
    while (target := folder.with_name(f"{folder.name}.old{number}")).exists():
        number += 1
    folder.rename(target)


def _parameters(model: nn.Module) -> dict[str, Any]:
    modules = {name: sum(p.numel() for p in child.parameters()) for name, child in model.named_children()}
    return {"total": sum(p.numel() for p in model.parameters()), "modules": modules}


def _message(error: Exception, folder: Path) -> str:
    """One line that says what was wrong; the traceback of what was not foreseen goes to a file."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full ({error.filename or folder}); free some space and the same command goes on"
    if isinstance(error, EXPECTED):
        return str(error)
    path = folder / "traceback.txt"
    record.write_atomic(path, traceback.format_exc())
    return f"{type(error).__name__}: {error} (traceback in {path})"
