"""The command line of runs and sweeps: its flags, the order of a sweep's runs, and the summary at the end."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import shlex
import sys
from collections.abc import Sequence
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import __version__ as hydra_version
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.errors import HydraException
from omegaconf import OmegaConf

from rmsexp import config, lock, process, record, submission
from rmsexp.command_line import Parser, ReportedError, entry_point, report
from rmsexp.earlier import Earlier, RefusedError
from rmsexp.usage import help_text

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rmsexp.runner import Outcome

UNSUPPORTED = (("-cp", "--config-path"), ("-cn", "--config-name"), ("--experimental-rerun",))  # flags of Hydra
INFORMATION = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")  # that Hydra can print
MOST_RUNS = 10_000  # of a sweep
PAPER_NORMS = ("ln", "rms", "none", "prms", "bn", "wn")  # norms that are suggested for the next run, in this order


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    """Do the runs of a command line and return its exit status.

    The status is 0 if all runs have finished or diverged, 1 if one failed, cannot be written or is locked by another
    process, 2 for a mistake on the command line, and 130, 143, 129 or 140 after Ctrl-C, SIGTERM, SIGHUP or SIGUSR2.
    """
    words = [config.expand_home(word) for word in (sys.argv[1:] if argv is None else argv)]
    arguments = parse(words)
    if arguments.help:
        print(help_text(arguments.config_dir))
        return 0
    folder = [] if arguments.config_dir is None else ["--config-dir", arguments.config_dir]
    if arguments.cfg or arguments.info or arguments.hydra_help or arguments.shell_completion:
        return _show(arguments, folder)
    try:
        runs, sweep = expand(arguments.overrides, arguments.multirun, arguments.config_dir)
        jobs = [config.job(overrides, arguments.config_dir) for overrides in runs]
        if sweep is None:
            return _single_run(jobs[0])
        if process.rank_and_size()[1] > 1:
            raise config.ConfigError("torchrun starts the processes of one run; a sweep (-m) has several runs")
        launcher = _launcher(sweep, arguments.config_dir)
        if submission.executor_name(launcher):
            overrides = [list(job.overrides) for job in jobs]
            submission.do(overrides, arguments.config_dir, launcher, do_run)
            return _end_of_sweep(jobs)
        (config.expanded(jobs[0].config.results) / ".hydra").mkdir(parents=True, exist_ok=True)  # hydra.sweep.dir
        with process.saving_workers(lambda: _busy(jobs)):
            _hydra(["-m", *folder, *sweep])
        return _end_of_sweep(jobs)
    except lock.RunLockedError as error:
        report(error)
        return 1


def _launcher(sweep: Sequence[str], config_dir: str | None) -> dict[str, Any]:
    """Return the config of Hydra's launcher as plain values. ``sweep``: the words that make Hydra do the runs."""
    composed = config.compose(_not_swept(sweep), config_dir, hydra=True)
    return config.plain_values(composed.hydra.launcher)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command line. Those that Hydra would ignore are refused, instead of ignored.

    Raises: SystemExit with status 2, after printing a mistake in one line; SystemExit with status 0 after --version.
    """
    parser = Parser(prog="rmsexp", add_help=False)
    parser.add_argument("overrides", nargs="*")
    for flags in (("-h", "--help"), ("-m", "--multirun"), ("-r", "--run"), ("--resolve",)):
        parser.add_argument(*flags, action="store_true")
    for flags in (("-sc", "--shell-completion"), ("--hydra-help",)):
        parser.add_argument(*flags, action="store_true")
    for flags in (("-cd", "--config-dir"), ("-p", "--package"), *UNSUPPORTED):
        parser.add_argument(*flags)
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    parser.add_argument("-i", "--info", nargs="?", const="all", choices=INFORMATION)
    parser.add_argument("--version", action="version", version=f"Hydra {hydra_version}")
    arguments = parser.parse_intermixed_args(words)
    for *_, flag in UNSUPPORTED:
        if getattr(arguments, flag.removeprefix("--").replace("-", "_")) is not None:
            parser.error(f"{flag} is not supported; --config-dir DIR adds a folder of configs")
    if arguments.cfg is None and (arguments.package is not None or arguments.resolve):
        parser.error("--package and --resolve have an effect together with --cfg only")
    if arguments.multirun and (arguments.run or arguments.cfg or arguments.info):
        parser.error("-m does not go with --run, --cfg and --info, which are about one run")
    return arguments


def expand(
    overrides: Sequence[str], multirun: bool, config_dir: str | None
) -> tuple[list[list[str]], list[str] | None]:
    """Return the overrides of each run of a command line, and the words that make Hydra do the runs in this order.

    The words are None if the command line is not a sweep: it has neither ``-m`` (``multirun``) nor a choice sweep=….

    Raises: ConfigError for a mistake in the overrides, or if a key has several values without a sweep.
    """
    parsed = config.parse(overrides)
    hydra = config.compose(_not_swept(overrides), config_dir, hydra=True).hydra
    multirun = multirun or str(hydra.mode) == "RunMode.MULTIRUN"
    swept = [override for override in parsed if override.is_sweep_override()]
    if swept and not multirun:
        raise config.ConfigError(f"{swept[0].input_line} names several runs: add -m for a sweep")
    if hydra.job.chdir and multirun:
        raise config.ConfigError("hydra.job.chdir=true would change the folder that relative paths start from")
    preset = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()] if multirun else []
    ordered = sort_for_sweep([*preset, *overrides])
    # the last override of a key wins
    axes = {override.get_key_element(): _choices(override) for override in config.parse(ordered)}
    count = math.prod(len(choices) for choices in axes.values())
    if count > MOST_RUNS:
        raise config.ConfigError(f"these are {count} runs; a sweep has at most {MOST_RUNS}")
    runs = [list(run) for run in itertools.product(*axes.values())]
    if not multirun:
        return runs, None
    runs = [[word for word in run if not config.is_for_sweeps(word)] for run in runs]
    return runs, [*ordered, "hydra.sweeper.params=null"]


def _not_swept(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that have one value."""
    parsed = config.parse(overrides)
    return [override.input_line for override in parsed if not override.is_sweep_override() and override.input_line]


def _choices(override: Override) -> list[str]:
    """Return one override per value of an override: norm=ln and norm=rms for norm=ln,rms.

    Raises: ConfigError if there are no values or too many, and if Hydra cannot list them, as for norm=glob(*).
    """
    word, key, values = override.input_line, override.get_key_element(), override.value()
    if not override.is_sweep_override():
        return [word or ""]
    # the length of a range is compared before Hydra lists its values, which for 10^9 takes minutes
    length = abs((values.stop or 0) - (values.start or 0)) if isinstance(values, RangeSweep) else 0
    if isinstance(values, RangeSweep) and length > MOST_RUNS * abs(values.step) > 0:
        raise config.ConfigError(f"{word} has too many values; a sweep has at most {MOST_RUNS} runs")
    try:
        choices = [f"{key}={value}" for value in override.sweep_string_iterator()]
    except (HydraException, ValueError):
        raise config.ConfigError(f"{word}: write the values with commas between them") from None
    if not choices:
        raise config.ConfigError(f"{word} has no values")
    return choices


def sort_for_sweep(overrides: Sequence[str]) -> list[str]:
    """Return the overrides in an order in which a sweep varies the seed slowest, and norms and their options fastest.

    Runs that differ in the norm only then follow each other directly.
    """
    return sorted(overrides, key=lambda word: word.startswith("norm") - word.startswith("seed="))


def _single_run(job: config.Job) -> int:
    """Do one run and return the exit status.

    Unless the run fails or is stopped, redraw the figures of its setting and suggest a next command. Of the processes
    that torchrun started for the run, process 0 alone does this.
    """
    from rmsexp import joint_runner

    outcome = joint_runner.execute(job)
    rank, _ = process.rank_and_size()
    if rank == 0:
        _print_outcome(job, outcome)
    elif outcome.status == "failed":
        report(f"process {rank}: {outcome.error}")
    if outcome.signum is not None:
        return 128 + outcome.signum
    if outcome.status == "failed":
        return 1
    if rank > 0:
        return 0
    curves = draw(job)
    if curves is not None:
        print(f"curves  {curves}")
    print(f"next    {_next_command(job)}")
    return 0


def _print_outcome(job: config.Job, outcome: Outcome) -> None:
    if outcome.status == "failed":
        print(f"rmsexp: {outcome.error}", file=sys.stderr)
        return
    if outcome.already:
        longer = "; a larger max_steps continues this one" if outcome.status == "finished" else ""
        print(f"already {outcome.status} at step {outcome.step} (force=true starts a new run{longer})")
        for notice in outcome.notices:
            print(f"note    {notice}")
    elif outcome.status == "interrupted":
        print(f"interrupted at step {outcome.step}; repeat the command to continue")
    else:
        reason = f": {outcome.error}" if outcome.error else ""
        print(f"{outcome.status} at step {outcome.step}{reason}")
    folder = record.RunFolder(job.folder)
    rows = folder.read_metrics()[0] if folder.metrics_path.exists() else []
    evaluations = [row for row in rows if row["split"] != "train"]
    for row in (row for row in evaluations if row["step"] == evaluations[-1]["step"]):
        print(f"{row['split']:7} {record.metrics_text(row)} (step {row['step']})")
    print(f"record  {job.folder}")


def _next_command(job: config.Job) -> str:
    """Return a command that runs the first of ``PAPER_NORMS`` that has no folder in this setting.

    If all have one, the command is a sweep over these norms with three seeds.
    """
    words = [shlex.quote(word) for word in job.overrides if not word.startswith(("norm", "force", "max_steps"))]
    existing = {path.name for path in job.setting_folder.iterdir() if path.is_dir()}
    norm = next((name for name in PAPER_NORMS if name not in existing), None)
    if norm is not None:
        return " ".join(["python -m rmsexp", *words, f"norm={norm}"])
    words = [word for word in words if not word.startswith("seed=")]
    return " ".join(["python -m rmsexp -m", *words, f"norm={','.join(PAPER_NORMS)}", "seed=0,1,2"])


def draw(job: config.Job) -> Path | None:
    """Redraw the figures of a job's setting; return the path of ``curves.png``, or None if there is nothing to draw."""
    from rmsexp import compare

    try:
        folder = compare.draw(config.expanded(job.config.results), job.config.task, job.setting)
    except ValueError:
        return None
    return folder / "curves.png"


def _show(arguments: argparse.Namespace, folder: Sequence[str]) -> int:
    """Let Hydra print the config or its other information. ``folder``: the words about ``--config-dir``."""
    composed = config.compose(
        [] if arguments.shell_completion else arguments.overrides, arguments.config_dir, hydra=arguments.cfg != "job"
    )
    package = arguments.package
    if package not in (None, "_global_") and OmegaConf.select(composed, package) is None:
        raise config.ConfigError(f"--package {package} is not a part of the config")
    values = {"--cfg": arguments.cfg, "--info": arguments.info, "--package": arguments.package}
    flags = ("resolve", "hydra_help", "shell_completion")
    words = [word for name, value in values.items() if value is not None for word in (name, value)]
    words += [f"--{name.replace('_', '-')}" for name in flags if getattr(arguments, name)]
    return _hydra([*words, *folder, *arguments.overrides])


def _hydra(words: Sequence[str]) -> int:
    """Let Hydra do the words of a command line, which have been checked, and return 0.

    Raises: ConfigError if Hydra refuses them, as for hydra.sweeper.max_batch_size=0; OSError; ReportedError if a
    launcher fails.
    """
    import hydra

    sys.argv = ["rmsexp", *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them
    try:
        hydra.main(config_path=str(config.CONFIGS), config_name="config", version_base=None)(_sweep_job)()
    except OSError:
        raise
    except RuntimeError as error:  # such as a worker of joblib that was killed
        raise ReportedError(f"{type(error).__name__}: {error}") from None
    except Exception as error:  # Hydra and its plugins raise many types of exceptions for invalid values
        raise config.ConfigError(
            f"Hydra refuses its own options and keys, hydra.… ({type(error).__name__}: {error})"
        ) from None
    return 0


_stopped: list[int] = []  # in a worker process: the exit status, once a signal has stopped one of its runs


def _sweep_job(composed: DictConfig) -> str:  # noqa: ARG001
    """Do one run of a sweep, in a worker process if the sweep does several at a time, and return its status.

    Raises: SystemExit if a signal stopped an earlier run of this process; as :func:`do_run`. This ends the sweep.
    """
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    sources = hydra.runtime.config_sources
    config_dir = next((source.path for source in sources if source.provider == "command-line"), None)
    n_jobs = hydra.launcher.get("n_jobs", 1)
    if n_jobs < 0:  # joblib: -1 stands for all cores, -2 for all but one
        import joblib

        n_jobs = max(1, joblib.cpu_count() + 1 + n_jobs)
    process.follow_parent(process.STOPPING)
    if _stopped:
        raise SystemExit(_stopped[0])
    return do_run([word for word in hydra.overrides.task if not config.is_for_sweeps(word)], config_dir, n_jobs)


def do_run(overrides: Sequence[str], config_dir: str | None, n_jobs: int = 1) -> str:
    """Do one run of a sweep, and return its status. ``n_jobs``: how many runs of the sweep share the machine.

    A run that fails has the status "failed"; an exception would end the sweep.

    Raises: SystemExit if a signal stopped this run; as :func:`rmsexp.runner.execute` after SIGUSR2.
    """
    from rmsexp import runner

    job = config.job(overrides, config_dir)
    with process.safe_output():
        try:
            outcome = runner.execute(job, n_jobs)
        except (lock.RunLockedError, OSError) as error:
            report(error)
            return "failed"
        _print_outcome(job, outcome)
    if outcome.signum is not None:
        process.exit_if_orphaned(outcome.signum)
        if parent_process() is not None:  # joblib gives this worker its next run although this one raises SystemExit
            _stopped.append(128 + outcome.signum)
        raise SystemExit(128 + outcome.signum)
    return outcome.status


def _busy(jobs: Sequence[config.Job]) -> set[int]:
    """Return the ids of the processes that are doing one of the runs."""
    return {status["process"] for job in jobs if (status := _status(job))["status"] == "running"}


def _end_of_sweep(jobs: Sequence[config.Job]) -> int:
    """Draw each setting of a sweep, print its table, and list the runs that did not finish.

    Return the exit status: 0 if all runs have finished or diverged, otherwise 1.
    """
    from rich.console import Console

    from rmsexp import compare
    from rmsexp.compare.tables import summary

    console = Console()
    for job in {job.setting_folder: job for job in jobs}.values():
        curves = draw(job)
        if curves is None:
            continue
        records = compare.load(job.setting_folder)
        console.print(summary.for_terminal(summary.table(records, job.config.task, job.setting)))
        console.print(f"curves  {curves}", soft_wrap=True)
    unfinished = {job.folder: status for job in jobs if (status := _result(job))["status"] != "finished"}
    for folder, status in unfinished.items():
        console.print(f"{status['status']}: {folder}: {status.get('error')}", markup=False, soft_wrap=True)
    failed = any(status["status"] != "diverged" for status in unfinished.values())
    if failed:
        console.print("repeat the command to do the runs that are missing; it skips those that have ended")
    return int(failed)


def _result(job: config.Job) -> dict[str, Any]:
    """Return the status of a job's run; "failed" if the run in its folder has finished but is not, or not all of, it.

    The job was then refused, and the message that says why was printed in its turn.
    """
    status, folder = _status(job), record.RunFolder(job.folder)
    if status["status"] == "finished":
        earlier = Earlier.read(folder)
        try:
            earlier.refuse_other_run(job)
            if not earlier.has_ended(job):
                earlier.refuse_other_config(job)
                raise RefusedError(f"it has finished at step {earlier.step}, and was not continued")
        except RefusedError as error:
            return status | {"status": "failed", "error": str(error)}
    return status


def _status(job: config.Job) -> dict[str, Any]:
    try:
        return record.RunFolder(job.folder).read_status()
    except (OSError, ValueError) as error:
        return {"status": "failed", "error": f"no status ({error})"}
