"""The command line: help, one run, sweeps, and what is said at their end."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydra._internal.utils import get_args_parser
from hydra.errors import HydraException

from rmsexp import config, record

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rmsexp.runner import Outcome

EXAMPLES = (
    ("python -m rmsexp", "CIFAR-10's built-in twin with RMSNorm, about a minute"),
    ("python -m rmsexp task=cifar10 norm=ln", "the same with LayerNorm; the curves then show both"),
    ("python -m rmsexp -m norm=none,ln,rms,prms,bn,wn seed=0,1", "a sweep: six norms, two seeds"),
    ("python -m rmsexp task=transformer scale=small data.root=~/data", "translation on the real Multi30k"),
    ("python -m rmsexp norm=prms norm.p=0.25 optim.lr=0.001", "any value of the config, by its name"),
    ("python -m rmsexp scale=paper data.root=~/data", "the paper's own setting, on real data"),
)
PAPER_NORMS = ("ln", "rms", "none", "prms", "bn", "wn")  # in the order to try them
KEYS = (
    ("seed", "of everything that is drawn: initial values, order, noise"),
    ("max_steps", "when to stop; a larger number continues a finished run"),
    ("device, threads, precision", "auto, cpu or cuda; CPU threads; float32 or bfloat16"),
    ("compile", "true: torch.compile the model; what that takes is no part of the time axis"),
    ("data.root", "where data sets are looked for and put"),
    ("results", "the root of all output"),
    ("force", "true: move a finished run aside and run anew"),
    ("norm.impl", "how the norm is computed: eager, as in the paper's comparisons, or fused, as fast as it can be"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status.

    0: finished, finished before, or diverged. 2: a mistake on the command line. 1: all else. 130, 143: interrupted.
    """
    words = [config.expand_home(word) for word in (sys.argv[1:] if argv is None else argv)]
    if "-h" in words or "--help" in words:
        print(help_text())
        return 0
    arguments = get_args_parser().parse_intermixed_args(words)
    flags = [word for word in words if word not in arguments.overrides]  # Hydra takes them before the overrides only
    if arguments.cfg or arguments.info or arguments.hydra_help or arguments.shell_completion:
        return _hydra([*flags, *arguments.overrides])
    try:
        runs, sweep = expand(arguments.overrides, arguments.multirun, arguments.config_dir)
        jobs = [config.job(overrides, arguments.config_dir) for overrides in runs]
        if sweep is None:
            return _one(jobs[0])
        Path(jobs[0].config.results, ".hydra").expanduser().mkdir(parents=True, exist_ok=True)  # else Hydra fails to
        _hydra([*flags, *sweep])
        return _end_of_sweep(jobs)
    except config.ConfigError as error:
        print(f"rmsexp: {error}", file=sys.stderr)
        return 2
    except (record.RunLockedError, OSError) as error:
        print(f"rmsexp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def expand(
    overrides: Sequence[str], multirun: bool, config_dir: str | None
) -> tuple[list[list[str]], list[str] | None]:
    """The overrides of each run that a command line asks for, and what makes Hydra do them in this order.

    The latter is None if it is no sweep.
    """
    parsed = config.parse(overrides)
    single = [o.input_line for o in parsed if not o.is_sweep_override() and o.input_line]
    hydra = config.compose(single, config_dir, hydra=True).hydra
    multirun = multirun or str(hydra.mode) == "RunMode.MULTIRUN"
    swept = [o for o in parsed if o.is_sweep_override()]
    if swept and not multirun:
        raise config.ConfigError(f"{swept[0].input_line} names several runs: add -m for a sweep")
    preset = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()] if multirun else []
    ordered = in_order([*preset, *overrides])
    axes: dict[str, list[str]] = {}
    for override in config.parse(ordered):
        key = override.get_key_element()
        try:
            values = list(override.sweep_string_iterator()) if override.is_sweep_override() else None
        except HydraException:
            raise config.ConfigError(f"{override.input_line}: write the values with commas between them") from None
        axes[key] = [override.input_line or ""] if values is None else [f"{key}={value}" for value in values]
    runs = [list(run) for run in itertools.product(*axes.values())]
    return runs, [*ordered, "hydra.sweeper.params=null"] if multirun else None


def in_order(overrides: Sequence[str]) -> list[str]:
    """Seeds vary slowest and norms fastest, so that norms are run side by side whatever the order typed."""
    return sorted(overrides, key=lambda word: word.startswith("norm") - word.startswith("seed="))


def _one(job: config.Job) -> int:
    from rmsexp import runner

    outcome = runner.execute(job)
    _say_outcome(job, outcome)
    if outcome.signum is not None:
        return 128 + outcome.signum
    if outcome.status == "failed":
        return 1
    curves = draw(job)
    if curves is not None:
        print(f"curves  {curves}")
    print(f"next    {_next_command(job)}")
    return 0


def _say_outcome(job: config.Job, outcome: Outcome) -> None:
    if outcome.status == "failed":
        print(f"rmsexp: {outcome.error}", file=sys.stderr)
        return
    if outcome.already:
        print(f"already {outcome.status} at step {outcome.step} (force=true runs it anew; a larger max_steps goes on)")
    elif outcome.status == "interrupted":
        print(f"interrupted at step {outcome.step}; repeat the command to continue")
    else:
        reason = f": {outcome.error}" if outcome.error else ""
        print(f"{outcome.status} at step {outcome.step}{reason}")
    folder = record.RunFolder(job.folder)
    rows = folder.read_metrics()[0] if folder.metrics_path.exists() else []
    evaluations = [row for row in rows if row["split"] != "train"]
    skipped = ("step", "epoch", "examples", "split", "seconds")
    for row in (row for row in evaluations if row["step"] == evaluations[-1]["step"]):
        numbers = ", ".join(
            f"{key} {value:.4f}" for key, value in row.items() if key not in skipped and value is not None
        )
        print(f"{row['split']:7} {numbers} (step {row['step']})")
    print(f"record  {job.folder}")


def _next_command(job: config.Job) -> str:
    """What a person may want to type after a run: another norm in the same setting, then a sweep."""
    words = [shlex.quote(word) for word in job.overrides if not word.startswith(("norm", "force", "max_steps"))]
    have = {path.name for path in job.setting_folder.iterdir() if path.is_dir()}
    other = next((name for name in PAPER_NORMS if name not in have), None)
    if other is not None:
        return " ".join(["python -m rmsexp", *words, f"norm={other}"])
    words = [word for word in words if not word.startswith("seed=")]
    return " ".join(["python -m rmsexp -m", *words, f"norm={','.join(PAPER_NORMS)}", "seed=0,1,2"])


def draw(job: config.Job) -> Path | None:
    """Redraws the comparison of the job's setting; None if there is nothing to draw yet."""
    from rmsexp import compare

    try:
        folder = compare.draw(Path(job.config.results).expanduser(), job.config.task, job.setting)
    except ValueError:
        return None
    return folder / "curves.png"


def _hydra(words: Sequence[str]) -> int:
    import hydra

    sys.argv = ["rmsexp", *words]
    hydra.main(config_path=str(config.CONFIGS), config_name="config", version_base=None)(_sweep_job)()
    return 0


def _sweep_job(composed: DictConfig) -> str:  # noqa: ARG001
    """One run of a sweep. It returns its status: an exception would end the sweep, and only a signal may."""
    from hydra.core.hydra_config import HydraConfig

    from rmsexp import runner

    hydra = HydraConfig.get()
    outside = next((source.path for source in hydra.runtime.config_sources if source.provider == "command-line"), None)
    n_jobs = hydra.launcher.get("n_jobs", 1)
    job = config.job(list(hydra.overrides.task), outside)
    try:
        outcome = runner.execute(job, n_jobs if n_jobs > 0 else os.cpu_count() or 1)
    except (record.RunLockedError, OSError) as error:
        print(f"rmsexp: {error}", file=sys.stderr)
        return "failed"
    _say_outcome(job, outcome)
    if outcome.signum is not None:
        raise SystemExit(128 + outcome.signum)
    return outcome.status


def _end_of_sweep(jobs: Sequence[config.Job]) -> int:
    """Draws each setting once, prints its table and what did not finish, and gives the exit status."""
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
    failed = False
    for job in jobs:
        try:
            status = record.RunFolder(job.folder).read_status()
        except (OSError, ValueError) as error:
            status = {"status": "failed", "step": 0, "error": f"no status ({error})"}
        if status["status"] != "finished":
            failed = failed or status["status"] != "diverged"
            console.print(f"{status['status']}: {job.folder}: {status.get('error')}", markup=False, soft_wrap=True)
    if failed:
        console.print("the same command again runs what is missing and skips what is done")
    return int(failed)


def help_text() -> str:
    """Written for a person: the groups, the keys that every task has, examples."""
    lines = [
        "rmsexp trains one of the paper's tasks with any normaliser, and draws loss against steps and against time.",
        "",
    ]
    lines += ["usage: python -m rmsexp [-m] [--config-dir DIR] [GROUP=CHOICE ...] [KEY=VALUE ...]", "", "groups:"]
    for group, meaning in config.GROUPS.items():
        lines.append(f"  {group}: {meaning}")
        if group not in ("recipe", "pair"):
            lines += [
                f"    {name:18}{_first_comment(config.CONFIGS / group / f'{name}.yaml')}"
                for name in config.options(group)
            ]
    lines += ["", "keys that every task has (python -m rmsexp task=… --cfg job shows all, with their values):"]
    lines += [f"  {key:28}{meaning}" for key, meaning in KEYS]
    lines += ["", "examples:"]
    lines += [f"  {command}\n      {meaning}" for command, meaning in EXAMPLES]
    lines += [
        "",
        "-m runs every combination of comma-separated values; --config-dir adds a folder of your own configs.",
    ]
    return "\n".join(lines)


def _first_comment(path: Path) -> str:
    comments = (line[2:] for line in path.read_text().splitlines() if line.startswith("# "))
    return next((comment for comment in comments if not comment.startswith("@package")), "")
