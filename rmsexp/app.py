"""The command line of runs and sweeps: its help, the order of a sweep's runs, and the summary at the end."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from rmsexp import config, process, record
from rmsexp.command_line import entry_point, report
from rmsexp.earlier import Earlier, RefusedError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rmsexp.runner import Outcome

# The commands other than runs, with their help. ``rmsexp NAME`` calls main(argv) of the module rmsexp.NAME, or of
# rmsexp.analysis.__main__.
COMMANDS = {
    "timing": "time training steps with several norms, interleaved, to compare what the norms cost",
    "bench": "time norm layers and recurrent layers alone, interleaved",
    "report": "write tables, figures and one page about all runs below a folder",
    "analysis": "compute the paper's analyses, such as the invariances of Table 1",
    "translate": "translate lines of text with a trained model",
    "prepare": "download, verify and preprocess the data set of a run",
    "published": "draw the authors' published logs beside our runs, or evaluate their model",
}
EXAMPLES = (
    ("python -m rmsexp", "RMSNorm on synthetic images like CIFAR-10's; about a minute"),
    ("python -m rmsexp task=cifar10 norm=ln", "the same with LayerNorm; the figure then shows both norms"),
    ("python -m rmsexp -m norm=none,ln,rms,prms,bn,wn seed=0,1", "a sweep: six norms, two seeds"),
    ("python -m rmsexp task=transformer scale=small data.root=~/data", "translation, on the real Multi30k"),
    ("python -m rmsexp norm=prms norm.p=0.25 optim.lr=0.001", "any value of the config can be set by its key"),
    ("python -m rmsexp scale=paper data.root=~/data", "the paper's own setting, on real data"),
)
PAPER_NORMS = ("ln", "rms", "none", "prms", "bn", "wn")  # norms that are suggested for the next run, in this order
KEYS = (
    ("seed", "seed of all random numbers: initial weights, order of the examples, noise"),
    ("max_steps", "number of training steps; a larger number continues a finished run"),
    ("device, threads, precision", "auto, cpu or cuda; number of CPU threads; float32 or bfloat16"),
    ("compile", "true: use torch.compile; the time axis of the curves excludes the warm-up, which compiles the model"),
    ("data.root", "the folder of all data sets"),
    ("results", "the folder of all results"),
    ("force", "true: start a new run and keep the old one beside it"),
    ("norm.impl", "eager: elementary PyTorch operations, as in the paper's comparison; fused: one kernel per layer"),
)


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    """Do the runs of a command line and return its exit status.

    The status is 0 if all runs have finished or diverged, 1 if one failed, cannot be written or is locked by another
    process, 2 for a mistake on the command line, and 130, 143 or 129 after Ctrl-C, SIGTERM or SIGHUP.
    """
    words = [config.expand_home(word) for word in (sys.argv[1:] if argv is None else argv)]
    if "-h" in words or "--help" in words:
        print(help_text())
        return 0
    arguments = get_args_parser().parse_intermixed_args(words)
    flags = [word for word in words if word not in arguments.overrides]  # Hydra expects flags before overrides
    if arguments.cfg or arguments.info or arguments.hydra_help or arguments.shell_completion:
        return _hydra([*flags, *arguments.overrides])
    try:
        runs, sweep = expand(arguments.overrides, arguments.multirun, arguments.config_dir)
        jobs = [config.job(overrides, arguments.config_dir) for overrides in runs]
        if sweep is None:
            return _single_run(jobs[0])
        (config.expanded(jobs[0].config.results) / ".hydra").mkdir(parents=True, exist_ok=True)  # hydra.sweep.dir
        with process.saving_workers(lambda: _busy(jobs)):
            _hydra([*flags, *sweep])
        return _end_of_sweep(jobs)
    except record.RunLockedError as error:
        report(error)
        return 1


def expand(
    overrides: Sequence[str], multirun: bool, config_dir: str | None
) -> tuple[list[list[str]], list[str] | None]:
    """Return the overrides of each run of a command line, and the words that make Hydra do the runs in this order.

    The words are None if the command line is not a sweep: it has neither ``-m`` (``multirun``) nor a choice sweep=….

    Raises: ConfigError for a mistake in the overrides, or if a key has several values without a sweep.
    """
    parsed = config.parse(overrides)
    single = [override.input_line for override in parsed if not override.is_sweep_override() and override.input_line]
    hydra = config.compose(single, config_dir, hydra=True).hydra
    multirun = multirun or str(hydra.mode) == "RunMode.MULTIRUN"
    swept = [override for override in parsed if override.is_sweep_override()]
    if swept and not multirun:
        raise config.ConfigError(f"{swept[0].input_line} names several runs: add -m for a sweep")
    preset = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()] if multirun else []
    ordered = sort_for_sweep([*preset, *overrides])
    axes = {
        override.get_key_element(): _choices(override) for override in config.parse(ordered)
    }  # the last override of a key wins
    runs = [list(run) for run in itertools.product(*axes.values())]
    return runs, [*ordered, "hydra.sweeper.params=null"] if multirun else None


def _choices(override: Override) -> list[str]:
    """Return one override per value of an override: norm=ln and norm=rms for norm=ln,rms.

    Raises: ConfigError if Hydra cannot list the values, as for norm=glob(*).
    """
    if not override.is_sweep_override():
        return [override.input_line or ""]
    try:
        return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
    except HydraException:
        raise config.ConfigError(f"{override.input_line}: write the values with commas between them") from None


def sort_for_sweep(overrides: Sequence[str]) -> list[str]:
    """Return the overrides in an order in which a sweep varies the seed slowest, and norms and their options fastest.

    Runs that differ in the norm only then follow each other directly.
    """
    return sorted(overrides, key=lambda word: word.startswith("norm") - word.startswith("seed="))


def _single_run(job: config.Job) -> int:
    """Do one run and return the exit status.

    Unless the run fails or is stopped, redraw the figures of its setting and suggest a next command.
    """
    from rmsexp import runner

    outcome = runner.execute(job)
    _print_outcome(job, outcome)
    if outcome.signum is not None:
        return 128 + outcome.signum
    if outcome.status == "failed":
        return 1
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


def _hydra(words: Sequence[str]) -> int:
    import hydra

    sys.argv = ["rmsexp", *words]
    hydra.main(config_path=str(config.CONFIGS), config_name="config", version_base=None)(_sweep_job)()
    return 0


_stopped: list[int] = []  # in a worker process: the exit status, once a signal has stopped one of its runs


def _sweep_job(composed: DictConfig) -> str:  # noqa: ARG001
    """Do one run of a sweep, in a worker process if the sweep does several at a time, and return its status.

    A run that fails has the status "failed"; an exception would end the sweep.

    Raises: SystemExit if a signal stopped this run, or an earlier one of this process. This ends the sweep.
    """
    from hydra.core.hydra_config import HydraConfig

    from rmsexp import runner

    hydra = HydraConfig.get()
    sources = hydra.runtime.config_sources
    config_dir = next((source.path for source in sources if source.provider == "command-line"), None)
    n_jobs = hydra.launcher.get("n_jobs", 1)
    process.follow_parent(process.STOPPING)
    if _stopped:
        raise SystemExit(_stopped[0])
    job = config.job(list(hydra.overrides.task), config_dir)
    with process.safe_output():
        try:
            outcome = runner.execute(job, n_jobs if n_jobs > 0 else os.cpu_count() or 1)
        except (record.RunLockedError, OSError) as error:
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


def help_text() -> str:
    """Return the help: commands, groups with their choices, keys that every task has, and examples."""
    lines = [
        "rmsexp trains one of the paper's tasks with any normaliser, and draws loss against steps and against time.",
        "",
        "usage: rmsexp [-m] [--config-dir DIR] [GROUP=CHOICE ...] [KEY=VALUE ...]",
        "       rmsexp COMMAND ...",
        "  rmsexp is short for python -m rmsexp. -m does a run for every combination of comma-separated values.",
        "  --config-dir adds a folder of your own configs.",
        "",
        "commands (rmsexp COMMAND --help explains each; python -m rmsexp.COMMAND does the same):",
        *(f"  {name:20}{meaning}" for name, meaning in COMMANDS.items()),
        "",
        "groups:",
        *_groups(),
        "",
        "keys that every task has (rmsexp task=cifar10 --cfg job prints all keys, with their values):",
        *(f"  {key:28}{meaning}" for key, meaning in KEYS),
        "",
        "examples:",
        *(f"  {command}\n      {meaning}" for command, meaning in EXAMPLES),
    ]
    return "\n".join(lines)


def _groups() -> Iterator[str]:
    """Yield a line of help for each config group and, except for recipe and pair, for each choice of the group."""
    for group, meaning in config.GROUPS.items():
        yield f"  {group}: {meaning}"
        if group not in ("recipe", "pair"):  # these follow from task, scale and norm
            for name in config.options(group):
                yield f"    {name:18}{_first_comment(config.CONFIGS / group / f'{name}.yaml')}"


def _first_comment(path: Path) -> str:
    comments = (line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
    return next((comment for comment in comments if not comment.startswith("@package")), "")
