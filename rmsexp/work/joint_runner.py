"""Do one run on the processes that torchrun has started for it, or, without torchrun, in this process."""

from __future__ import annotations

import traceback
from threading import Event

from rmsexp import config, tasks
from rmsexp.models.recurrent import impl_of
from rmsexp.system import process
from rmsexp.system.command_line import brief
from rmsexp.train.contention import Contention
from rmsexp.train.device import compile_model, set_up_device
from rmsexp.train.distributed.group import Group, joined
from rmsexp.train.interrupt import Interrupted
from rmsexp.train.loop import Diverged, Trainer, share_start
from rmsexp.train.progress import ProgressDisplay
from rmsexp.train.step import Stepper
from rmsexp.work import runner
from rmsexp.work.runner import Outcome

REPORTING_SECONDS = 10.0  # that process 0 has for a message


def execute(job: config.Job, n_jobs: int = 1, quiet: bool = False) -> Outcome:
    """Begin or continue the run of a job (:func:`rmsexp.work.runner.execute`), on all processes that torchrun started.

    Raises: ConfigError if there are more processes than micro-batches, in process 0, and SystemExit in the others;
    lock.RunLockedError.
    """
    (rank, size), (key, number) = process.rank_and_size(), job.config.parts
    if size > number:
        if rank > 0:  # the message of process 0 is enough; when it has ended, torchrun ends the others
            Event().wait(REPORTING_SECONDS)
            raise SystemExit(config.ConfigError.exit_status)
        raise config.ConfigError(f"{size} processes need as many micro-batches per step; set {key}={size} or more")
    with joined(lambda: set_up_device(job.config), job.config.distributed.timeout) as group:
        if not isinstance(group, Group) or group.rank == 0:
            return runner.execute(job, runner.Conditions(n_jobs, group=group, quiet=quiet))
        return _follow(job, group)


def _follow(job: config.Job, group: Group) -> Outcome:
    """Take part in the run of process 0, which has the record. The outcome is "finished" if that does not begin it."""
    try:
        with group.interrupt.install():
            if not group.share(False):  # process 0 says whether the run begins
                return Outcome("finished", 0, already=True)
            return _take_part(job, group)
    except Interrupted as stop:
        return Outcome("interrupted", 0, str(stop), stop.signum)
    except Exception as error:
        if not isinstance(error, runner.EXPECTED):
            traceback.print_exc()
        return Outcome("failed", 0, brief(error))


def _take_part(job: config.Job, group: Group) -> Outcome:
    cfg = job.config
    with group.preparing():
        task = tasks.make(job, group.device)
        task.prepare(lambda _: None)
    model = tasks.build(task, job)
    stepper = Stepper(cfg, task, model, group.device, group)
    impl = impl_of(job.norm, model)
    state, clock = share_start(stepper, None, runner.identity(job, task), job.resolved, impl)
    compile_model(model, cfg)
    contention = Contention(group.device, own_pids=group.own_pids)
    display = ProgressDisplay("", cfg.max_steps, quiet=True)
    trainer = Trainer(stepper, state, clock, None, contention=contention, display=display)
    try:
        trainer.run()
    except Diverged as divergence:
        return Outcome("diverged", divergence.step, str(divergence))
    return Outcome("finished", trainer.state.step)
