"""Do the runs of a sweep, through Hydra's launchers or submitit, and show how they ended."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rmsexp import config
from rmsexp.commands import outcomes, sweep_display
from rmsexp.config.words import not_swept
from rmsexp.records import record, states, sweep_file
from rmsexp.records.past import Past, RefusedError, name_of
from rmsexp.system import atomic, lock, process
from rmsexp.system.command_line import ReportedError, config_dir_words, report
from rmsexp.system.regular_file import read_regular
from rmsexp.work import submission

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rmsexp.report import Records

REFUSED = (config.ConfigError, submission.NotSubmittedError, lock.RunLockedError)  # before any run has begun
NOT_OF_A_FILE = ("results=", "force=")  # words that the file of a sweep does not have: results may be moved


def do(
    jobs: Sequence[config.Job],
    words: Sequence[str],
    typed: Sequence[str],
    config_dir: str | None,
    *,
    quiet: bool = False,
) -> int:
    """Do the runs of a sweep and return the exit status.

    ``words``: those that make Hydra do the runs in this order. ``typed``: those of the user, for the file that lists
    the runs. ``quiet``: show no progress.

    Raises: ConfigError if torchrun started this process, or a run is there twice; lock.RunLockedError if another
    process writes a run that ``force=true`` would move aside; as :func:`hydra`.
    """
    if process.rank_and_size()[1] > 1:
        raise config.ConfigError("torchrun starts the processes of one run; a sweep (-m) has several runs")
    folder, count = Counter(job.folder for job in jobs).most_common(1)[0]
    if count > 1:
        raise config.ConfigError(
            f"the sweep would do the run {folder} {count} times; give each value once, and sweep only over keys that "
            "make different runs"
        )
    launcher = _launcher(words, config_dir)
    with _listed(jobs, [*config_dir_words(config_dir), *typed]), _set_aside(jobs):
        if submission.executor_name(launcher):
            submission.do([list(job.overrides) for job in jobs], config_dir, launcher, do_run)
        else:
            _do_by_hydra(jobs, [*config_dir_words(config_dir), *words], launcher, quiet=quiet)
    return _end(jobs)


@contextmanager
def _set_aside(jobs: Sequence[config.Job]) -> Iterator[None]:
    """Move the earlier runs of all jobs with ``force=true`` aside, before the first run begins.

    If the sweep is interrupted, its command without ``force=true`` then does the runs that are left, because no earlier
    run is in their folders. If the sweep ends by an error before a run has begun, the earlier runs are moved back.
    """
    from rmsexp.work import runner

    moved: dict[Path, Path] = {}  # the folder of a run -> that of the earlier run
    try:
        for folder in (record.RunFolder(job.folder) for job in jobs if job.config.force and job.folder.exists()):
            with folder.locked():
                if kept := runner.set_aside(folder):
                    moved[folder.path] = kept
        yield
    except (*REFUSED, OSError):
        if not any(path.exists() for path in moved):  # otherwise the sweep has begun
            for path, kept in moved.items():
                kept.rename(path)
                report(f"the earlier run is {path} again")
        raise


def _do_by_hydra(jobs: Sequence[config.Job], words: Sequence[str], launcher: Mapping[str, Any], *, quiet: bool) -> None:
    """Do the runs of a sweep, one after the other or with joblib. Arguments are as in :func:`do`.

    Raises: SystemExit after a signal; as :func:`hydra`.
    """
    (config.expanded(jobs[0].config.results) / ".hydra").mkdir(parents=True, exist_ok=True)  # hydra.sweep.dir
    _quiet[:] = [True] * quiet
    _jobs[:] = jobs
    n_jobs, others = launcher.get("n_jobs", 1), "joblib" in launcher["_target_"]  # others: processes that do the runs
    at_once = min(_at_once(n_jobs), len(jobs))
    # the number by which the runs divide the cores; joblib refuses 0 by itself
    shared = [f"hydra.launcher.n_jobs={at_once}"] if others and n_jobs else []
    try:
        with process.saving_workers(lambda: _busy(jobs)), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"joblib\.externals\.loky")  # that its workers were stopped
            with sweep_display.shown(jobs, at_once) if others and not quiet else nullcontext():
                hydra(["-m", *words, *shared])
    except SystemExit:
        _stopped_early(jobs)
        raise


@contextmanager
def _listed(jobs: Sequence[config.Job], typed: Sequence[str]) -> Iterator[None]:
    """Write the file that lists the runs of a sweep, for ``rmsexp.status``: one in each folder of results.

    If the sweep is refused inside the context, the files are as before. If they cannot be written, that is reported.
    """
    by_results: dict[Path, dict[str, int]] = {}
    for job in jobs:
        results = config.expanded(job.config.results)
        runs = by_results.setdefault(results, {})
        runs[job.folder.relative_to(results).as_posix()] = job.config.max_steps
    command = ["-m", *(word for word in typed if not word.lstrip("+").startswith(NOT_OF_A_FILE))]
    earlier: dict[Path, bytes | None] = {}
    try:
        for results, runs in by_results.items():
            file = sweep_file.place(results, runs)
            earlier[file] = read_regular(file) if file.exists() else None
            sweep_file.write(results, command, runs)
    except OSError as error:
        report(f"rmsexp.status will not show this sweep: {error}")
    try:
        yield
    except REFUSED:
        for file, content in earlier.items():
            with suppress(OSError):
                if content is not None:
                    atomic.write_atomic(file, content)
                else:
                    file.unlink()
                    file.parent.rmdir()
        raise


def _at_once(n_jobs: int) -> int:
    """Return how many runs a launcher does at the same time. For joblib -1 stands for all cores, -2 for all but one."""
    if n_jobs < 0:
        import joblib

        return max(1, joblib.cpu_count() + 1 + n_jobs)
    return max(1, n_jobs)


def _stopped_early(jobs: Sequence[config.Job]) -> None:
    """After a signal, print the tables of the sweep's settings, and how many of its runs are in which state."""
    from rmsexp.report import load

    runs = sweep_display.read(jobs, _runs)
    console = Console(highlight=False)
    for job in {job.setting_folder: job for job in jobs}.values():
        with suppress(ValueError):  # without metrics there is no table
            _print_table(load(job.setting_folder), job, console)
    console.print(f"stopped: {sweep_display.counts(runs)}; {jobs[0].again} to continue", soft_wrap=True)


def _launcher(sweep: Sequence[str], config_dir: str | None) -> dict[str, Any]:
    """Return the config of Hydra's launcher as plain values. ``sweep``: the words that make Hydra do the runs."""
    composed = config.compose(not_swept(sweep), config_dir, hydra=True)
    return config.plain_values(composed.hydra.launcher)


def hydra(words: Sequence[str]) -> int:
    """Let Hydra do the words of a command line, which have been checked, and return 0.

    Raises: ConfigError if Hydra refuses them, as for hydra.sweeper.max_batch_size=0; OSError; ReportedError if a
    launcher fails.
    """
    from hydra import main

    sys.argv = ["rmsexp", *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them
    try:
        main(config_path=str(config.CONFIGS), config_name="config", version_base=None)(_sweep_job)()
    except OSError:
        raise
    except RuntimeError as error:  # such as a worker of joblib that was killed
        raise ReportedError(f"{type(error).__name__}: {error}") from None
    except Exception as error:  # Hydra and its plugins raise many types of exceptions for invalid values
        raise config.ConfigError(
            f"Hydra refuses its own options and keys, hydra.… ({type(error).__name__}: {error})"
        ) from None
    return 0


_quiet: list[bool] = []  # in the process of the sweep: not empty if its runs show no progress
_jobs: list[config.Job] = []  # in the process of the sweep: its runs
_runs = states.RunReader()  # in the process of the sweep


def _sweep_job(composed: DictConfig) -> str:  # noqa: ARG001
    """Do one run of a sweep, in a worker process if the sweep does several at a time, and return its status.

    After an error in this program, print its traceback and return "failed".

    Raises: SystemExit as :func:`do_run`. This ends the sweep.
    """
    from hydra.core.hydra_config import HydraConfig

    running = HydraConfig.get()
    sources = running.runtime.config_sources
    config_dir = next((source.path for source in sources if source.provider == "command-line"), None)
    n_jobs = _at_once(running.launcher.get("n_jobs", 1))
    process.follow_parent(process.STOPPING)
    if _jobs and not _quiet and parent_process() is None:
        _announce(running.job.num)
    words = [word for word in running.overrides.task if not config.is_for_sweeps(word)]
    try:
        return do_run(words, config_dir, n_jobs)
    except Exception:  # which Hydra would raise again, as if it were its own
        traceback.print_exc()
        return "failed"


def _announce(number: int) -> None:
    """Print the number of a run in the sweep and its name, and the time left in all."""
    several = len({job.setting_folder for job in _jobs}) > 1
    left = sweep_display.time_left(sweep_display.read(_jobs, _runs))
    name = sweep_display.name(_jobs[number], several)
    print(f"[{number + 1}/{len(_jobs)}] {name}{', ' * bool(left)}{left}", file=sys.stderr)


def do_run(overrides: Sequence[str], config_dir: str | None, n_jobs: int = 1) -> str:
    """Do one run of a sweep, and return its status. ``n_jobs``: how many runs of the sweep share the machine.

    A run that fails has the status "failed"; an exception would end the sweep.

    Raises: SystemExit if a signal stopped this run; as :func:`rmsexp.work.runner.execute` after SIGUSR2.
    """
    from rmsexp.work import runner

    quiet = bool(_quiet) or _is_of_joblib()
    with process.safe_output():
        try:
            job = config.job(overrides, config_dir)
            outcome = runner.execute(job, runner.Around(n_jobs, quiet=quiet, forced=False))
        except (lock.RunLockedError, ReportedError, OSError) as error:
            report(error)
            return "failed"
        # the process of the sweep shows how the runs of joblib ended, but may not know why one was refused
        if outcome.status == "failed" or not _is_of_joblib():
            outcomes.show(job, outcome)
        else:
            for notice in outcome.notices:
                report(f"{job.folder}: {notice}")
    if outcome.signum is not None:
        process.exit_if_orphaned(outcome.signum)
        process.stop_parent()
        raise SystemExit(128 + outcome.signum)
    return outcome.status


def _is_of_joblib() -> bool:
    """Return whether this is a worker process, whose runs the process of the sweep shows."""
    return parent_process() is not None and not process.in_submitit()


def _busy(jobs: Sequence[config.Job]) -> set[int]:
    """Return the ids of the processes that are doing one of the runs."""
    return {status["process"] for job in jobs if (status := _status(job))["status"] == "running"}


def _end(jobs: Sequence[config.Job]) -> int:
    """Draw each setting of a sweep, print its table, and list the runs that did not finish.

    Return the exit status: 0 if all runs have finished or diverged, otherwise 1.
    """
    from rmsexp.report import load

    console = Console()
    for job in {job.setting_folder: job for job in jobs}.values():
        curves = outcomes.draw(job)
        if curves is None:
            continue
        records = load(job.setting_folder)
        _print_table(records, job, console)
        console.print(f"curves  {curves}", soft_wrap=True)
    unfinished = {job.folder: status for job in jobs if (status := _result(job))["status"] != "finished"}
    for folder, status in unfinished.items():
        reason = "another process is doing it" if status["status"] == "running" else status.get("error")
        console.print(f"{status['status']}: {folder}: {reason}", markup=False, soft_wrap=True)
    failed = any(status["status"] != "diverged" for status in unfinished.values())
    if failed:
        console.print(f"{jobs[0].again} to do the runs that are missing; it skips those that have ended")
    return int(failed)


def _print_table(records: Records, job: config.Job, console: Console) -> None:
    from rmsexp.report.tables import summary

    console.print(summary.for_terminal(summary.table(records, job.config.task, job.setting)))


def _result(job: config.Job) -> Mapping[str, Any]:
    """Return the status of a job's run; "failed" if the run in its folder has ended but is not, or not all of, it.

    So it is, too, if the record contradicts that it has ended. The job was then refused or could not be repeated, and
    the message that says why was printed in its turn.
    """
    status, folder = _status(job), record.RunFolder(job.folder)
    if status["status"] in record.ENDED:
        try:
            past = Past.read(folder)
            past.refuse_other(run=name_of(job), config=job.resolved)
            if not past.has_ended(job.config.max_steps):
                raise RefusedError(f"it has finished at step {past.step}, and was not continued")
        except RefusedError as error:
            return {**status, "status": "failed", "error": str(error)}
    return status


def _status(job: config.Job) -> Mapping[str, Any]:
    try:
        return record.RunFolder(job.folder).read_status()
    except (OSError, ValueError) as error:
        return {"status": "failed", "error": f"no status ({error})"}
