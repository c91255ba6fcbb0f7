"""The runs of a sweep as jobs of submitit: of SLURM with ``hydra/launcher=slurm``, or processes with submitit_local.

When a job's time is almost over, or it is pre-empted and SLURM has ``PreemptParameters=send_user_signal``, submitit
gets SIGUSR2. The run is saved first (:func:`rmsexp.work.runner.execute`); then submitit requeues the job, which
continues the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rmsexp.system.command_line import ReportedError, report

LAUNCHERS = {"SlurmLauncher": "slurm", "LocalLauncher": "local"}  # class of the plugin -> executor of submitit
Do = Callable[[Sequence[str], str | None], str]


class NotSubmittedError(ReportedError):
    """The jobs cannot be submitted, for example because this machine does not belong to SLURM."""


@dataclass(frozen=True)
class _Work:
    """What a job does: ``do`` with the overrides of a run and the folder of ``--config-dir``."""

    do: Do

    def __call__(self, overrides: Sequence[str], config_dir: str | None) -> str:
        return self.do(overrides, config_dir)

    def checkpoint(self, overrides: Sequence[str], config_dir: str | None) -> Any:
        """Return what a requeued job does: it continues the run."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, overrides, config_dir)


def executor_name(launcher: Mapping[str, Any]) -> str | None:
    """Return the name of submitit's executor for Hydra's config of a launcher; None for launchers without submitit."""
    package, _, name = launcher["_target_"].rpartition(".")
    return LAUNCHERS.get(name) if package.startswith("hydra_plugins.hydra_submitit_launcher") else None


def do(runs: Sequence[Sequence[str]], config_dir: str | None, launcher: Mapping[str, Any], function: Do) -> None:
    """Submit a job for each run, and wait until all have ended. Report the jobs that ended without a result.

    If this process ends before, the jobs go on.

    Args:
        runs: the overrides of each.
        launcher: the plain values of Hydra's config of a launcher of hydra-submitit-launcher.
        function: does a run; it must be importable in the jobs.

    Raises: NotSubmittedError.
    """
    from submitit.core.utils import UncompletedJobError

    try:
        jobs = _executor(launcher).map_array(_Work(function), runs, [config_dir] * len(runs))
    except RuntimeError as error:
        raise NotSubmittedError(f"the jobs cannot be submitted: {error}") from None
    report(f"submitted {len(jobs)} jobs, which go on if this command ends; their output: {jobs[0].paths.folder}")
    for number, (job, overrides) in enumerate(zip(jobs, runs, strict=True), 1):
        words = " ".join(overrides)
        try:
            report(f"{job.result()}: run {number} of {len(jobs)}: {words}")
        except UncompletedJobError:
            report(f"job {job.job_id} ended without a result (see {job.paths.stderr}): run {number}: {words}")


def _executor(launcher: Mapping[str, Any]) -> Any:
    """Return submitit's executor with the options of a launcher, each named as submitit names it."""
    import submitit
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

    cluster, shared = executor_name(launcher), {field.name for field in fields(BaseQueueConf)}
    options = {key: value for key, value in launcher.items() if key not in ("_target_", "submitit_folder")}
    created = {f"{cluster}_{key}": options.pop(key) for key in ("max_num_timeout",) if key in options}
    executor = submitit.AutoExecutor(launcher["submitit_folder"], cluster=cluster, **created)
    executor.update_parameters(**{key if key in shared else f"{cluster}_{key}": options[key] for key in options})
    return executor
