"""The command line of runs and sweeps. Its words are checked here; Hydra composes the configs and starts the runs."""

import argparse
import math
import os
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

import rmsexp
from rmsexp import config
from rmsexp.commands import launch, outcomes
from rmsexp.config import classes, words
from rmsexp.system import process
from rmsexp.system.command_line import Parser, ReportedError, config_dir_words, entry_point, report

INFORMATION = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")  # that Hydra can print
SEARCH_RESULT = "optimization_results.yaml"  # written by Optuna's sweeper
QUIET = "RMSEXP_QUIET"  # environment variable that is set if runs show no progress, also in processes of launchers


@entry_point
def main(argv: Sequence[str]) -> int:
    """Do the runs of a command line and return its exit status.

    The status is 0 if all runs have finished or diverged, 1 if one failed, cannot be written or is locked by another
    process, 2 for a mistake on the command line, and 130, 143, 129 or 140 after Ctrl-C, SIGTERM, SIGHUP or SIGUSR2.
    """
    arguments = parse(argv)
    if arguments.version:
        print(f"rmsexp {rmsexp.__version__} (torch {version('torch')}, hydra-core {version('hydra-core')})")
        return 0
    folder = arguments.config_dir
    if arguments.shell_completion:
        return launch.launch(run, ["--shell-completion", *config_dir_words(folder), *arguments.overrides])
    overrides = words.overrides(arguments.overrides, folder)
    if arguments.help or arguments.hydra_help or arguments.cfg or arguments.info:
        return _print(arguments, overrides)
    sweep = words.expand(overrides, arguments.multirun, folder)
    jobs = [config.job(run, folder) for run in sweep.runs]  # a mistake is reported before the first run begins
    own = config_dir_words(folder)
    if arguments.quiet:
        os.environ[QUIET] = "1"
    try:
        if sweep.words is None:
            status = launch.launch(run, [*own, *overrides])
            if not status and process.rank_and_size()[0] == 0:
                outcomes.show_setting(jobs[0], folder, arguments.quiet)
            return status
        if process.rank_and_size()[1] > 1:
            raise config.ConfigError("torchrun starts the processes of one run; a sweep (-m) has several runs")
        if sweep.searches:
            status = launch.launch(run, ["-m", *own, *sweep.words, *_of_search(jobs[0], overrides)])
            if not status:
                print(f"result  {config.expanded(jobs[0].config.results) / SEARCH_RESULT}")
            return status
        return _sweep(jobs, sweep, folder)
    finally:
        os.environ.pop(QUIET, None)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command line. Those that Hydra would ignore are refused, instead of ignored.

    Raises: SystemExit with status 2, after printing a mistake in one line.
    """
    parser = Parser(prog="rmsexp", add_help=False)
    parser.add_argument("overrides", nargs="*")
    switches = "-h --help, -m --multirun, -q --quiet, -sc --shell-completion, --hydra-help, --version"
    for switch in switches.split(", "):
        parser.add_argument(*switch.split(), action="store_true")
    parser.add_config_dir()
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    parser.add_argument("-p", "--package")
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("-i", "--info", nargs="?", const="all", choices=INFORMATION)
    arguments = parser.parse_intermixed_args(argv)
    if arguments.cfg is None and (arguments.resolve or arguments.package is not None):
        parser.error("--resolve and --package belong to --cfg job")
    return arguments


def _print(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Let Hydra print its help, the config, or other information."""
    words = [] if arguments.help else overrides
    config.compose(words, arguments.config_dir, hydra=arguments.cfg != "job")  # reports mistakes in them
    values = {"--cfg": arguments.cfg, "--package": arguments.package, "--info": arguments.info}
    options = [word for name, value in values.items() if value is not None for word in (name, value)]
    options += ["--resolve"] * arguments.resolve + ["--help"] * arguments.help + ["--hydra-help"] * arguments.hydra_help
    return launch.launch(run, [*options, *config_dir_words(arguments.config_dir), *words])


def _sweep(jobs: Sequence[config.Job], sweep: words.Sweep, config_dir: str | None) -> int:
    """Do the runs of a sweep with Hydra, list those that did not finish, and return the exit status.

    Raises: RunLockedError if another process writes a run that ``force=true`` would move aside; as
    :func:`.launch.launch`.
    """
    from rmsexp.records.record import RunFolder
    from rmsexp.work import runner

    shared = list[str]()
    if sweep.launcher.get("n_jobs"):  # of joblib, which refuses 0 by itself: no more processes than runs
        import joblib

        shared = [f"hydra.launcher.n_jobs={min(joblib.effective_n_jobs(sweep.launcher['n_jobs']), len(jobs))}"]
    # Earlier runs are moved aside before the first run begins. If the sweep is interrupted, its command without
    # force=true then does the runs that are left.
    for earlier in (RunFolder(job.folder) for job in jobs if job.config.force and job.folder.exists()):
        with earlier.lock.held():
            runner.set_aside(earlier)
    begun = [word for word in sweep.words or [] if not word.startswith("force=")]
    try:
        with process.ending_on_signals(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"joblib\.externals\.loky")  # that one of its processes has ended
            status = launch.launch(run, ["-m", *config_dir_words(config_dir), *begun, *shared])
    except KeyboardInterrupt:
        report("interrupted")
        status = 130
    if status:
        print(f"stopped: {outcomes.counts(jobs)}; {jobs[0].again} to continue")
        return status
    outcomes.show_settings(jobs)
    return outcomes.list_unfinished(jobs)


def _of_search(job: config.Job, overrides: Sequence[str]) -> list[str]:
    """Return overrides for a sweeper that searches, such as Optuna's: direction of the task's target, and seed."""
    known = {word.lstrip("+").partition("=")[0] for word in overrides}
    preset: dict[str, Any] = {}
    if (key := "hydra.sweeper.direction") not in known:
        preset[key] = {"min": "minimize", "max": "maximize"}[classes.target_of_class(job.config).mode]
    if "hydra/sweeper/sampler=grid" not in overrides:  # the only one of the plugin that draws nothing
        preset["hydra.sweeper.sampler.seed"] = job.config.seed
    return [f"{key}={value}" for key, value in preset.items() if key not in known]


def run(composed: DictConfig) -> float:  # noqa: ARG001
    """Do the run of a job of Hydra. Return the last value of the task's target, by which a sweeper may search.

    A run of a sweep that diverged has the worst value: infinity, or minus infinity if larger is better. One that failed
    has NaN, and so has a single run. The end of a run of a sweep does not end the sweep, except by a signal.

    Raises: SystemExit if a signal stopped the run, or if it failed and is no run of a sweep; as
    :func:`rmsexp.work.runner.execute` after SIGUSR2.
    """
    from rmsexp.work import runner

    running = launch.enter()
    swept, rank = running.mode == RunMode.MULTIRUN, process.rank_and_size()[0]
    try:
        job = _job(running)
        n_jobs = running.launcher.get("n_jobs") or 1
        if n_jobs < 0:  # of a search, which joblib's launcher was given as it is
            import joblib

            n_jobs = joblib.effective_n_jobs(n_jobs)
        outcome = runner.execute_jointly(job, n_jobs, quiet=QUIET in os.environ)
        if rank == 0:  # of the processes that torchrun started for the run, process 0 alone shows it
            outcomes.show(job, outcome, swept)
        elif outcome.status == "failed":
            report(f"process {rank}: {outcome.error}")
    except (ReportedError, OSError) as error:
        report(error)
        status = getattr(error, "exit_status", 1)
    except Exception:  # an error of this program; Hydra would report it as its own
        traceback.print_exc()
        status = 1
    else:
        status = 128 + outcome.signum if outcome.signum is not None else int(outcome.status == "failed")
    if status >= 128 or (status and not swept):
        raise SystemExit(status)
    return outcomes.value(job, outcome) if swept and not status else math.nan


def _job(running: Any) -> config.Job:
    """Return the job of Hydra's own part of a composed config."""
    overrides = [word for word in running.overrides.task if not config.is_for_sweeps(word)]
    sources = running.runtime.config_sources
    folder = next((source.path for source in sources if source.provider == "command-line"), None)
    return config.job(overrides, folder)


# ${run_folder:} in Hydra's part of the config is the folder of the run's record
OmegaConf.register_new_resolver("run_folder", lambda *, _root_: str(_job(_root_.hydra).folder.absolute()), replace=True)
