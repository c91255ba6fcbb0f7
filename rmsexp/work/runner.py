"""Do one run, from its config to its end: data, model, training, record, status; in one process or in several."""

import errno
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from rmsexp import config, tasks
from rmsexp.models.recurrent import impl_of
from rmsexp.records import record
from rmsexp.records.record import Session, Status
from rmsexp.records.states import Past, RefusedError, name_of
from rmsexp.system import atomic, lock, process
from rmsexp.system.command_line import ReportedError, brief, memory_message, report
from rmsexp.system.readers import yaml_text
from rmsexp.task import Task
from rmsexp.train import provenance
from rmsexp.train.checkpoint import Identity
from rmsexp.train.contention import Contention
from rmsexp.train.device import set_up_device
from rmsexp.train.group import Alone, Group, joined
from rmsexp.train.loop import Diverged, Trainer, restore, share_start
from rmsexp.train.progress import Failures, ProgressDisplay, logged
from rmsexp.train.step import Stepper
from rmsexp.train.writer import Writer

# Errors that are reported by their message, without a traceback. A ValueError is one before the training; after that it
# is an error of the program.
EXPECTED = (ReportedError, ValueError)


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    ``step``: number of steps taken; 0 if unknown. ``error``: why it diverged, failed or was interrupted. ``signum``:
    the number of the signal that stopped it, or None. ``already``: whether it had ended before this process, which then
    did nothing. ``notice``: in this case, a line if the user's own code has changed since; "" otherwise.
    """

    status: Status
    step: int
    error: str | None = None
    signum: int | None = None
    already: bool = False
    notice: str = ""


@dataclass(frozen=True)
class Conditions:
    """How a run shares the machine and the terminal, and with which processes it is done.

    ``n_jobs``: the number of runs that share the machine. ``pauses``: whether it waits while another process
    measures there. ``group``: the processes of the run, of which this is process 0; None: it is the only one.
    ``quiet``: whether no progress is shown; warnings are. ``evaluates``: whether the run is evaluated.
    """

    n_jobs: int = 1
    pauses: bool = False
    group: Alone | None = None
    quiet: bool = False
    evaluates: bool = True


ALONE = Conditions()


def execute(job: config.Job, conditions: Conditions = ALONE) -> Outcome:
    """Begin or continue the run of a job, unless it has already ended. With ``force``, move an earlier run aside first.

    If a launcher repeats the command, ``force`` is ignored. Errors in the run give the outcome "failed".

    Raises: lock.RunLockedError if another process writes this run; OSError if the folder cannot be locked; after
    SIGUSR2, what the earlier handler raises, such as SystemExit if submitit has requeued its job.
    """
    # Compute and cache these now: source files may be edited while the run goes on with the code that it has loaded.
    provenance.code()
    provenance.git()
    files = record.RunFolder(job.folder)
    with files.lock.held():
        if job.config.force:
            set_aside(files, conditions.group)
        try:
            past = Past.read(files)
            past.refuse_other(run=name_of(job), config=job.resolved)
            if past.has_ended(job.config.max_steps):
                return _already(past, job)
        except RefusedError as error:
            return Outcome("failed", 0, str(error))
        files.path.mkdir(parents=True, exist_ok=True)
        files.remove_temporaries()
        outcome = _run_and_report(job, past, conditions)
    process.hand_on(outcome.signum)
    return outcome


def changes(job: config.Job) -> str:
    """Return a notice if a run has ended, and the user's own code has changed since; "" else.

    Raises: RefusedError if its config is another, or if it cannot be read.
    """
    past = Past.read(record.RunFolder(job.folder))
    past.refuse_other(run=name_of(job), config=job.resolved)
    return _already(past, job).notice


def set_aside(files: record.RunFolder, group: Alone | None = None) -> None:
    """Move an earlier run aside, for ``force=true``, unless a launcher has repeated the command. Report what was done.

    The caller must hold the run's lock. ``group``: as in :class:`Conditions`.
    """
    is_repeated = (group or Alone()).is_restarted
    if process.is_started_again("SLURM"):  # by SLURM: it may give commands that it had not reached before
        sessions = []
        with suppress(OSError, ValueError):
            sessions = files.read_run()["sessions"]
        is_repeated = process.slurm_job() in [session.get("slurm_job", "") for session in sessions]
    if is_repeated:
        report("force=true is ignored, because torchrun or SLURM has started this command again")
    elif kept := files.move_aside():
        report(f"force=true begins a new run; the earlier one is kept as {kept}")


def _already(past: Past, job: config.Job) -> Outcome:
    """Return the outcome of a run that had ended before this process."""
    assert past.status is not None
    notice, now = "", provenance.own_modules(job.resolved, edited=True)
    if past.sessions and past.sessions[-1].get(record.OWN_CODE, now) != now:
        notice = "the module of your own norm or task has changed since; these numbers are of the earlier code"
    error = past.status.get("error")
    return Outcome(past.status["status"], past.step, error, already=True, notice=notice)


def _run_and_report(job: config.Job, past: Past, conditions: Conditions) -> Outcome:
    """Run the job and return its outcome, also after an exception.

    Write the outcome to ``status.json``. It is left as it was if another process may have taken the run over, or if a
    finished run, which is to get more steps, fails or is stopped before the first of them.
    """
    files, group = past.files, conditions.group or Alone()
    writer = Writer(files, name_of(job), past.step, past.checkpoint)
    had_ended = past.status is not None and past.status["status"] in record.ENDED
    try:
        with group.interrupt.install():
            if not had_ended:  # a finished run stays so until it goes on, even after SIGKILL
                writer.write_status("running")
            outcome = _run(job, past, writer, group, conditions)
    except process.Interrupted as stop:
        outcome = Outcome("interrupted", writer.step, str(stop), stop.signum)
    except lock.RunLockedError as error:
        return Outcome("failed", writer.step, str(error))
    except Exception as error:
        outcome = Outcome("failed", writer.step, _message(error, job, (ReportedError,) if writer.begun else EXPECTED))
    if outcome.signum is None:  # a signal also counts if an error came before Interrupted was raised
        outcome = replace(outcome, signum=group.interrupt.received)
    if had_ended and not writer.begun:
        return outcome
    if outcome.status in record.ENDED:
        files.traceback_path.unlink(missing_ok=True)  # of an earlier process of the run
    try:
        writer.write_status(outcome.status, outcome.error)
    except OSError as error:  # a full disk must not hide how the run ended
        report(f"{files.path}: status.json could not be written ({error.strerror})")
    except lock.RunLockedError as error:
        return Outcome("failed", writer.step, str(error))
    return outcome


def _run(job: config.Job, past: Past, writer: Writer, group: Alone, conditions: Conditions) -> Outcome:
    """Load the data, make the model, restore the newest undamaged checkpoint if there is one, and train."""
    cfg, failures = job.config, Failures()
    device = set_up_device(cfg, conditions.n_jobs)
    shown = ProgressDisplay(f"{job.series} seed{cfg.seed}", cfg.max_steps, failures, conditions.quiet)
    with logged(past.files.log_path, failures), closing(shown) as display:
        with group.preparing():
            task = tasks.make(job, device)
            display.metric = task.target.metric
            data, builtin = task.dataset.name, task.dataset.builtin
            source = f"built-in data ({data}){config.papers_scale(cfg.task)}" if builtin else f"data {data}"
            display.report(f"task={cfg.task} norm={job.series} scale={job.setting} seed={cfg.seed}: {source}")
            past.refuse_other(data=task.dataset.digest)  # before the preprocessing
            task.prepare(display.report)
            past.refuse_other(task.notes)
        model = tasks.build(task, job)
        stepper, impl = Stepper(cfg, task, model, device, group), impl_of(job.norm, model)
        known = identity(job, task)
        state, clock = restore(stepper, past.files, known, past.checkpoint, display.warn)
        if group.size > 1:
            state, clock = share_start(stepper, (state, clock), known, job.resolved, impl)
        contention = Contention(device, shared=conditions.n_jobs > 1)
        session = provenance.session(device, state.step) | {"impl": impl} | group.facts
        past.files.write_sources(sources := provenance.own_sources(job.resolved))
        session |= {record.OWN_CODE: record.digest_of_sources(sources)} if sources else {}
        facts = _facts(job, task, model) | {"sessions": _sessions(past.sessions, session, display)}
        past.files.overrides_path.parent.mkdir(exist_ok=True)
        atomic.write_atomic(past.files.overrides_path, yaml_text(list(job.overrides)))
        writer.begin(known, job.resolved, facts, contention.report(), failures, cfg.logger)
        how = {"pauses": conditions.pauses, "evaluates": conditions.evaluates}
        trainer = Trainer(stepper, state, clock, writer, contention=contention, display=display, **how)
        status: Status = "failed"
        error = None
        try:
            trainer.run()
            status = "finished"
        except Diverged as divergence:
            status, error = "diverged", str(divergence)
        except process.Interrupted:
            status = "interrupted"
            raise
        finally:
            writer.end(status, trainer.state.step)
        return Outcome(status, writer.step, error)


def _sessions(earlier: Sequence[Session], current: dict[str, Any], display: ProgressDisplay) -> list[Mapping[str, Any]]:
    """Return the sessions of a run: those of ``earlier`` that began before the present one, and ``current``, this one.

    ``comparable`` in this session is false if :func:`provenance.changed` finds changes since the session before, such
    as of code or threads, or if no session before is recorded. These, and the step of a continued run, are reported.
    """
    step = current["from_step"]
    sessions = [session for session in earlier if session.get("from_step", 0) < step]
    changed = provenance.changed(sessions[-1], current) if sessions else []
    if changed:
        display.warn(f"changed since the run's last process: {', '.join(changed)}; so its time counts as disturbed")
    known = bool(sessions) or not step
    if not known:
        display.warn("the run's earlier processes are not recorded; so its time counts as disturbed")
    if step:
        display.report(f"continuing at step {step}")
    return [*sessions, current | {"comparable": known and not changed}]


def identity(job: config.Job, task: Task) -> Identity:
    """Return the identity that the checkpoints of a job's run have."""
    return Identity(job.config.seed, config.digest(job.resolved), task.dataset.digest)


def _facts(job: config.Job, task: Task, model: nn.Module) -> dict[str, Any]:
    """Return the content of ``run.json`` except for its sessions."""
    cfg, modules = job.config, Counter[str]()  # the number of parameters, by child module
    for name, parameter in model.named_parameters():
        modules[name.partition(".")[0]] += parameter.numel()
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
        "parameters": {"total": modules.total(), "modules": dict(modules)},
    }


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


# --- on several processes


def execute_jointly(job: config.Job, n_jobs: int = 1, quiet: bool = False) -> Outcome:
    """Begin or continue the run of a job (:func:`execute`), on all processes that torchrun started.

    Raises: ConfigError if there are more processes than micro-batches; lock.RunLockedError.
    """
    size, (key, number) = process.rank_and_size()[1], job.config.parts
    if size > number:
        raise config.ConfigError(f"{size} processes need as many micro-batches per step; set {key}={size} or more")
    with joined(lambda: set_up_device(job.config), job.config.distributed.timeout) as group:
        if not isinstance(group, Group) or group.rank == 0:
            return execute(job, Conditions(n_jobs, group=group, quiet=quiet))
        return _follow(job, group)


def _follow(job: config.Job, group: Group) -> Outcome:
    """Take part in the run of process 0, which has the record. The outcome is "finished" if it does not begin."""
    cfg = job.config
    try:
        with group.interrupt.install():
            if not group.share(False):  # process 0 says whether the run begins
                return Outcome("finished", 0, already=True)
            with group.preparing():
                task = tasks.make(job, group.device)
                task.prepare(lambda _: None)
            model = tasks.build(task, job)
            stepper = Stepper(cfg, task, model, group.device, group)
            state, clock = share_start(stepper, None, identity(job, task), job.resolved, impl_of(job.norm, model))
            contention = Contention(group.device)
            display = ProgressDisplay("", cfg.max_steps, quiet=True)
            trainer = Trainer(stepper, state, clock, None, contention=contention, display=display)
            trainer.run()
            return Outcome("finished", trainer.state.step)
    except Diverged as divergence:
        return Outcome("diverged", divergence.step, str(divergence))
    except process.Interrupted as stop:
        return Outcome("interrupted", 0, str(stop), stop.signum)
    except Exception as error:
        if not isinstance(error, EXPECTED):
            traceback.print_exc()
        return Outcome("failed", 0, brief(error))
