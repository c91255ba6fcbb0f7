"""The command line of runs and sweeps: its flags, and what a single run prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from omegaconf import OmegaConf

import rmsexp
from rmsexp import config
from rmsexp.commands import outcomes
from rmsexp.commands.usage import help_text
from rmsexp.config import words
from rmsexp.system import lock, process
from rmsexp.system.command_line import Parser, config_dir_words, entry_point, report

UNSUPPORTED = (("-cp", "--config-path"), ("-cn", "--config-name"), ("--experimental-rerun",))  # flags of Hydra
INFORMATION = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")  # that Hydra can print


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    """Do the runs of a command line and return its exit status.

    The status is 0 if all runs have finished or diverged, 1 if one failed, cannot be written or is locked by another
    process, 2 for a mistake on the command line, and 130, 143, 129 or 140 after Ctrl-C, SIGTERM, SIGHUP or SIGUSR2.
    """
    arguments = parse(sys.argv[1:] if argv is None else argv)
    if arguments.version:
        print(f"rmsexp {rmsexp.__version__} (torch {version('torch')}, hydra-core {version('hydra-core')})")
        return 0
    if arguments.help:
        print(help_text(arguments.config_dir))
        return 0
    if arguments.cfg or arguments.info or arguments.hydra_help or arguments.shell_completion:
        return _show(arguments)
    if warning := words.repeated(arguments.overrides):
        report(warning)
    try:
        overrides = words.overrides(arguments.overrides, arguments.config_dir)
        runs, swept = words.expand(overrides, arguments.multirun, arguments.config_dir)
        if swept is not None and arguments.run:
            raise config.ConfigError("--run is about one run, and these words make a sweep; leave out --run")
        jobs = [config.job(run, arguments.config_dir) for run in runs]
        if swept is None:
            return _single_run(jobs[0], arguments)
        from rmsexp.commands import sweep  # which imports pandas; --help and a mistake need not wait for it

        return sweep.do(jobs, swept, arguments.overrides, arguments.config_dir, quiet=arguments.quiet)
    except lock.RunLockedError as error:
        report(error)
        return 1


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command line. Those that Hydra would ignore are refused, instead of ignored.

    Raises: SystemExit with status 2, after printing a mistake in one line.
    """
    parser = Parser(prog="rmsexp", add_help=False)
    parser.add_argument("overrides", nargs="*")
    for flags in (
        ("-h", "--help"),
        ("-m", "--multirun"),
        ("-r", "--run"),
        ("--resolve",),
        ("-q", "--quiet"),
        ("--version",),
    ):
        parser.add_argument(*flags, action="store_true")
    for flags in (("-sc", "--shell-completion"), ("--hydra-help",)):
        parser.add_argument(*flags, action="store_true")
    for flags in (("-cd", "--config-dir"), ("-p", "--package"), *UNSUPPORTED):
        parser.add_argument(*flags)
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    parser.add_argument("-i", "--info", nargs="?", const="all", choices=INFORMATION)
    arguments = parser.parse_intermixed_args(argv)
    for *_, flag in UNSUPPORTED:
        if getattr(arguments, flag.removeprefix("--").replace("-", "_")) is not None:
            parser.error(f"{flag} is not supported; --config-dir DIR adds a folder of configs")
    if arguments.cfg is None and (arguments.package is not None or arguments.resolve):
        parser.error("--package and --resolve have an effect together with --cfg only")
    if arguments.multirun and (arguments.run or arguments.cfg or arguments.info):
        parser.error("-m does not go with --run, --cfg and --info, which are about one run")
    return arguments


def _single_run(job: config.Job, arguments: argparse.Namespace) -> int:
    """Do one run and return the exit status.

    Unless the run fails or is stopped, redraw the figures of its setting and suggest a next command. Of the processes
    that torchrun started for the run, process 0 alone does this.
    """
    from rmsexp.work import joint_runner

    outcome = joint_runner.execute(job, arguments.quiet)
    rank, _ = process.rank_and_size()
    if rank == 0:
        outcomes.show(job, outcome)
    elif outcome.status == "failed":
        report(f"process {rank}: {outcome.error}")
    if outcome.signum is not None:
        return 128 + outcome.signum
    if outcome.status == "failed":
        return 1
    if rank > 0:
        return 0
    curves = outcomes.draw(job)
    if curves is not None and not arguments.quiet:
        print(f"curves  {curves}")
    if not arguments.quiet:
        print(f"next    {outcomes.next_command(job, arguments.config_dir)}")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    """Let Hydra print the config, its other information, or what a shell needs for completion."""
    overrides, folder = arguments.overrides, arguments.config_dir
    if not arguments.shell_completion:
        overrides = words.overrides(overrides, folder)
    composed = config.compose([] if arguments.shell_completion else overrides, folder, hydra=arguments.cfg != "job")
    package = arguments.package
    if package not in (None, "_global_") and OmegaConf.select(composed, package) is None:
        raise config.ConfigError(f"--package {package} is not a part of the config")
    values = {"--cfg": arguments.cfg, "--info": arguments.info, "--package": arguments.package}
    flags = ("resolve", "hydra_help", "shell_completion")
    options = [word for name, value in values.items() if value is not None for word in (name, value)]
    options += [f"--{name.replace('_', '-')}" for name in flags if getattr(arguments, name)]
    from rmsexp.commands import sweep

    return sweep.hydra([*options, *config_dir_words(folder), *overrides])
