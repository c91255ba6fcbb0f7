"""Do one run, from its config to its end: data, model, training, record, status."""

from __future__ import annotations

import errno
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from rmsexp import config, tasks
from rmsexp.data import DataError
from rmsexp.models.recurrent import impl_of
from rmsexp.records import record
from rmsexp.records.earlier import Earlier, RefusedError, name_of
from rmsexp.system import atomic, lock, process
from rmsexp.system.command_line import ReportedError, brief, memory_message, report
from rmsexp.system.machine_lock import Pause
from rmsexp.system.readers import yaml_text
from rmsexp.system.regular_file import read_regular
from rmsexp.task import Task
from rmsexp.train import loggers, provenance
from rmsexp.train.checkpoint import Identity
from rmsexp.train.contention import Contention
from rmsexp.train.device import compile_model, lacks_gpu, set_up_device
from rmsexp.train.distributed.group import Group
from rmsexp.train.distributed.joint import JointContention, JointTrainer, share_start, stepper_of
from rmsexp.train.failures import Failures
from rmsexp.train.interrupt import Interrupt, Interrupted
from rmsexp.train.loop import Diverged, Trainer, restore
from rmsexp.train.progress import ProgressDisplay
from rmsexp.train.state import State

# errors that are reported by their message, without a traceback; in training a ValueError is no mistake of the user
REPORTED = (DataError, ReportedError)
EXPECTED = (*REPORTED, ValueError)


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    ``error``: why it diverged, failed or was interrupted. ``signum``: the number of the signal that stopped it, or
    None. ``already``: whether it had ended before this process, which then did nothing. ``notices``: lines about its
    record.
    """

    status: record.Status
    step: int
    error: str | None = None
    signum: int | None = None
    already: bool = False
    notices: tuple[str, ...] = ()


@dataclass
class StatusFile:
    """Writes ``status.json``.

    ``begun``: whether this process has written the run's record, ``run.json``. The other fields are the arguments of
    :meth:`rmsexp.records.record.RunFolder.write_status`.
    """

    folder: record.RunFolder
    run: str
    step: int
    checkpoint: int | None
    metrics: dict[str, Any] | None
    begun: bool = False

    def follow(self, state: State) -> None:
        """Set the step and the metrics to those of a state."""
        self.step, self.metrics = state.step, self.folder.metrics_digest(state.metrics_bytes)

    def write(self, status: record.Status, error: str | None = None) -> None:
        self.folder.write_status(
            status, self.step, error, run=self.run, checkpoint=self.checkpoint, metrics=self.metrics
        )


@dataclass(frozen=True)
class RunFile:
    """Writes ``run.json``.

    ``identity``: the content except ``sessions``. ``sessions``: one entry per process whose steps are part of the run;
    the last is this process's, to which the contention is added, and what ``failures`` and the standard streams report.
    ``state``: of the training.
    """

    folder: record.RunFolder
    identity: dict[str, Any]
    sessions: list[dict[str, Any]]
    contention: Contention
    failures: Failures
    state: State

    def write(self) -> None:
        """Raises: RunLockedError if another process may have taken over the run."""
        self.folder.check_lock()
        *earlier, current = self.sessions
        switched_off = self.failures.errors | process.output_failures()
        added: dict[str, Any] = {"contention": self.contention.report()}
        if switched_off:
            added["switched_off"] = switched_off
        if self.state.step <= current["from_step"]:
            added[record.TRAINED] = False
        atomic.write_json(self.folder.run_path, self.identity | {"sessions": [*earlier, current | added]})

    def write_failures(self) -> None:
        """Write the file again at the end of the run if something was switched off; loggers may fail at their end."""
        if self.failures.errors or process.output_failures():
            with suppress(OSError, lock.RunLockedError):
                self.write()


@dataclass(frozen=True)
class Around:
    """What surrounds a run.

    ``n_jobs``: the number of runs that share the machine. ``pause``: when the run pauses between steps; None: never.
    ``group``: the processes of the run, of which this is process 0; None: it is the only one. ``quiet``: whether no
    progress is shown; warnings are. ``forced``: whether ``force=true`` has its effect; a sweep has moved the earlier
    runs aside itself.
    """

    n_jobs: int = 1
    pause: Pause | None = None
    group: Group | None = None
    quiet: bool = False
    forced: bool = True


ALONE = Around()


def execute(job: config.Job, around: Around = ALONE) -> Outcome:
    """Begin or continue the run of a job, unless it has already ended. With ``force``, move an earlier run aside first.

    If a launcher repeats the command, ``force`` is ignored: the run of the first time continues.

    Raises: lock.RunLockedError if another process writes this run; after SIGUSR2, what the handler that was there
    before raises, such as SystemExit if submitit has requeued its job.
    """
    outcome = _execute(job, around)
    process.hand_on(outcome.signum)
    return outcome


def _execute(job: config.Job, around: Around) -> Outcome:
    # Compute and cache these now: source files may be edited while the run goes on with the code that it has loaded.
    provenance.code()
    provenance.git()
    folder = record.RunFolder(job.folder)
    with folder.locked():
        if job.config.force and around.forced:
            set_aside(folder, around.group)
        earlier, warnings = Earlier.read(folder), list[str]()
        try:
            earlier.refuse_other_run(job)
            earlier.refuse_other_config(job)
            if earlier.has_ended(job):
                contradiction = earlier.contradiction(job)
                if contradiction is None:
                    return _already(earlier, job)
                warnings.append(f"{contradiction}; the run continues from its last checkpoint")
        except RefusedError as error:
            return Outcome("failed", earlier.step, str(error))
        if job.config.evaluation is not None and any(
            word.lstrip("+").startswith("eval_every=") for word in job.overrides
        ):
            warnings.append(f"eval_every has no effect with evaluation={job.config.evaluation}")
        warnings += earlier.repair()
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.remove_temporaries()
        with process.safe_output():
            return _run_and_report(job, earlier, warnings, around)


def set_aside(folder: record.RunFolder, group: Group | None = None) -> Path | None:
    """Move an earlier run aside, for ``force=true``, unless a launcher has repeated the command. Say what was done.

    The caller must hold the run's lock. ``group``: as in :class:`Around`. Return the new folder of the earlier run;
    None if nothing was moved.
    """
    if _is_repeated(folder, group):
        report("force=true is ignored, because torchrun or SLURM has started this command again")
        return None
    if kept := folder.move_aside():
        report(f"force=true begins a new run; the earlier one is kept as {kept}")
    return kept


def _is_repeated(folder: record.RunFolder, group: Group | None) -> bool:
    """Return whether a launcher has given this run's command before: torchrun, or SLURM in a job that it requeued.

    A requeued job may give commands that it had not reached before; the sessions of their runs are of other jobs.
    """
    if process.is_requeued():
        return process.slurm_job() in [session.get("slurm_job", "") for session in Earlier.read(folder).sessions]
    return process.is_restarted() if group is None else group.is_restarted


def _already(earlier: Earlier, job: config.Job) -> Outcome:
    """Return the outcome of a run that had ended before this process."""
    assert earlier.status is not None
    status, notices = earlier.status, earlier.notices
    now = provenance.own_modules(job.resolved, edited=True)
    if earlier.sessions and earlier.sessions[-1].get(record.OWN_CODE, "") != now:
        notices.append("the module of your own norm or task has changed since; these numbers are of the earlier code")
    idle = ["device=cuda"] * lacks_gpu(job.config)
    idle += [f"logger={name}" for name in ("wandb", "tensorboard") if getattr(job.config.logger, name) is not None]
    if idle:
        seen = "; torch sees no CUDA device here, so a new run needs device=cpu" * lacks_gpu(job.config)
        notices.append(f"nothing was trained, so {' and '.join(idle)} had no effect{seen}")
    return Outcome(status["status"], earlier.step, status.get("error"), already=True, notices=tuple(notices))


def _run_and_report(
    job: config.Job,
    earlier: Earlier,
    warnings: Sequence[str],
    around: Around,
) -> Outcome:
    """Run the job and return its outcome, also after an exception.

    Write the outcome to ``status.json``, unless the run is refused or another process may have taken it over, or it had
    ended and fails or is stopped before it goes on: then the status stays as it was.
    """
    folder, before = earlier.folder, earlier.status or {}
    status = StatusFile(folder, name_of(job), earlier.step, before.get("checkpoint"), before.get("metrics"))
    interrupt = Interrupt() if around.group is None else around.group.interrupt
    written = read_regular(folder.status_path) if folder.status_path.exists() else None
    try:
        with interrupt.install():
            if before.get("status") not in record.ENDED:  # a finished run stays so until it goes on, even after SIGKILL
                status.write("running")
            outcome = _run(job, earlier, warnings, status, interrupt, around)
    except Interrupted as stop:
        outcome = Outcome("interrupted", status.step, str(stop), stop.signum)
    except RefusedError as error:
        _write_back(folder.status_path, written)
        return Outcome("failed", status.step, str(error))
    except lock.RunLockedError as error:
        return Outcome("failed", status.step, str(error))
    except Exception as error:
        outcome = Outcome("failed", status.step, _message(error, job, REPORTED if status.begun else EXPECTED))
    if outcome.signum is None:  # a signal also counts if an error came before Interrupted was raised
        outcome = replace(outcome, signum=interrupt.received)
    if before.get("status") in record.ENDED and not status.begun:
        _write_back(folder.status_path, written)
        return outcome
    if outcome.status in record.ENDED:
        folder.traceback_path.unlink(missing_ok=True)  # of an earlier process of the run
    try:
        status.write(outcome.status, outcome.error)
    except OSError as error:  # a full disk must not hide how the run ended
        print(f"the status of {folder.path} could not be written ({error.strerror})", file=sys.stderr)
    except lock.RunLockedError as error:
        return Outcome("failed", status.step, str(error))
    return outcome


def _write_back(path: Path, content: bytes | None) -> None:
    """Write the earlier content of a file back. None: delete the file, which did not exist."""
    if content is None:
        path.unlink()
    else:
        atomic.write_atomic(path, content)


def _run(
    job: config.Job,
    earlier: Earlier,
    warnings: Sequence[str],
    status: StatusFile,
    interrupt: Interrupt,
    around: Around,
) -> Outcome:
    """Load the data, make the model, restore the newest undamaged checkpoint if there is one, and train."""
    cfg, folder, failures, group = job.config, status.folder, Failures(), around.group
    loggers.check(cfg.logger)
    device = set_up_device(cfg, around.n_jobs)
    if group is not None:
        group.announce(begins=True)
    with closing(ProgressDisplay(f"{job.series} seed{cfg.seed}", cfg.max_steps, failures, around.quiet)) as display:
        with nullcontext() if group is None else group.turn():
            task = tasks.make(job, device)
            display.metric = task.target.metric
            display.report(_headline(job, task))
            for warning in warnings:
                display.warn(warning)
            earlier.refuse_other_data(task.dataset.digest)  # before the preprocessing
            task.prepare(display.report)
            earlier.refuse_other_tokens(task.notes)
        model = tasks.build(task, job)
        stepper = stepper_of(cfg, task, model, device, group)
        start = restore(stepper, folder, identity(job, task), status.checkpoint)
        if group is not None:
            share_start(group, stepper, start, identity(job, task), job.resolved, impl_of(job.norm, model))
        compile_model(model, cfg)
        for warning in start.warnings:
            display.warn(warning)
        contention = Contention(device, shared=around.n_jobs > 1) if group is None else JointContention(device, group)
        session = provenance.session(device, start.state.step) | {"impl": impl_of(job.norm, model)}
        session |= {} if group is None else group.facts
        session |= {record.OWN_CODE: own} if (own := provenance.own_modules(job.resolved)) else {}
        sessions = _sessions(earlier.sessions, session, display)
        run_file = RunFile(folder, _facts(job, task, model), sessions, contention, failures, start.state)

        def update_record() -> None:
            """Write ``run.json`` and the status, at the start and after each checkpoint."""
            status.follow(start.state)
            status.checkpoint = start.state.step
            status.begun = True
            run_file.write()
            status.write("running")

        atomic.write_atomic(folder.config_path, yaml_text(job.resolved))
        update_record()
        facts = run_file.identity | {"sessions": sessions}
        views = loggers.make(cfg.logger, loggers.Run(folder.path, job.resolved, facts, start.state.step), failures)
        parts_of_trainer = (stepper, start, folder, interrupt, contention, views, display, update_record)
        trainer = Trainer(*parts_of_trainer, around.pause) if group is None else JointTrainer(*parts_of_trainer)
        try:
            outcome = _train(trainer, views, status)
            if outcome.status == "diverged":  # the file has the contention up to the last checkpoint
                with suppress(OSError):
                    run_file.write()
            return outcome
        finally:
            run_file.write_failures()


def _train(trainer: Trainer, views: Sequence[loggers.Logger], status: StatusFile) -> Outcome:
    """Train to the end, close the loggers with the run's final status, and return the outcome."""
    final_status: record.Status = "failed"
    error = None
    try:
        trainer.run()
        final_status = "finished"
    except Diverged as divergence:
        final_status, error = "diverged", str(divergence)
        status.follow(trainer.state)
    except Interrupted:
        final_status = "interrupted"
        raise
    finally:
        status.step = trainer.state.step
        for view in views:
            view.close(final_status)
    return Outcome(final_status, status.step, error)


def _headline(job: config.Job, task: Task) -> str:
    cfg, name = job.config, task.dataset.name
    data = f"built-in data ({name}){config.papers_scale(cfg.task)}" if task.dataset.builtin else f"data {name}"
    return f"task={cfg.task} norm={job.series} scale={job.setting} seed={cfg.seed}: {data}"


def _sessions(
    earlier: Sequence[dict[str, Any]], current: dict[str, Any], display: ProgressDisplay
) -> list[dict[str, Any]]:
    """Return the sessions of a run: those of ``earlier`` that began before the present one, and ``current``, this one.

    ``comparable`` in this session is false if a key of ``provenance.DECISIVE``, such as code or threads, has changed
    since the session before. Such changes, and the step of a continued run, are reported.
    """
    step = current["from_step"]
    sessions = [session for session in earlier if session["from_step"] < step]
    changed = provenance.changed(sessions[-1], current) if sessions else []
    if changed:
        display.warn(f"changed since the run's last process: {', '.join(changed)}; savings of time exclude this run")
    known = bool(sessions) or not step
    if not known:
        display.warn("the run's earlier processes are not recorded; savings of time exclude this run")
    if step:
        display.report(f"continuing at step {step}")
    return [*sessions, current | {"comparable": known and not changed}]


def identity(job: config.Job, task: Task) -> Identity:
    """Return the identity that the checkpoints of a job's run have."""
    return Identity(job.config.seed, config.digest(job.resolved), task.dataset.digest)


def _facts(job: config.Job, task: Task, model: nn.Module) -> dict[str, Any]:
    """Return the content of ``run.json`` except for its sessions."""
    cfg = job.config
    return {
        "format": 1,
        "task": cfg.task,
        "norm": job.norm.name,
        "scale": cfg.scale,
        "seed": cfg.seed,
        "setting": job.setting,
        "series": job.series,
        "impl": impl_of(job.norm, model),
        "precision": cfg.precision,
        "recipe_steps": cfg.schedule.steps,
        "evaluation": cfg.evaluation,
        "target": asdict(task.target),
        "quantities": [asdict(quantity) for quantity in task.quantities],
        "predictions": task.predictions,
        "dataset": asdict(task.dataset),
        "notes": dict(task.notes),
        "parameters": _parameters(model),
    }


def _parameters(model: nn.Module) -> dict[str, Any]:
    """Return the number of parameters, in total and per child module."""
    modules: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        modules[name.partition(".")[0]] += parameter.numel()
    return {"total": modules.total(), "modules": dict(modules)}


def _message(error: Exception, job: config.Job, expected: tuple[type[Exception], ...]) -> str:
    """Return the message about an error that ended a run; write the traceback of one that is not expected to a file."""
    folder = record.RunFolder(job.folder)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or folder.path
        return f"the disk is full ({where}); free some space and {job.again}: it continues the run"
    if message := memory_message(error):
        return message
    if isinstance(error, expected):
        return brief(error)
    try:
        atomic.write_atomic(folder.traceback_path, traceback.format_exc())
    except OSError as other:
        return brief(f"{type(error).__name__}: {error} (the traceback cannot be written: {other.strerror})")
    return brief(f"{type(error).__name__}: {error} (traceback in {folder.traceback_path})")
