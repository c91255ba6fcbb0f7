"""``python -m rmsexp.campaign NAME``: do all runs that answer a question, and decide its claims; or make a table or a
figure of the paper.

    --plan     print the runs, what they take, and which are done; train nothing but trials of 20 steps
    --register write registered.json and end, so that it can be committed before the first run
    --jobs N   start N workers here, whose lines begin with their number; default: one worker
    --on ray   do the runs as tasks of a cluster of Ray (docs/clusters.md); --on ray=ADDRESS: of the one at ADDRESS

NAME is a file configs/campaign/NAME.yaml, which says what is asked, tuned, trained and claimed (docs/campaigns.md). The
same command again continues. Every process that runs it is a worker: start as many as you like, on one machine or on
several that share the folder of results; no two of them do the same run. A worker uses one thread unless threads=… is
set. Words KEY=VALUE change the campaign (norms=[ln,rms], margin=1, tune.…, final.…) or all of its runs (task=cifar10,
data.root=…, results=…).

NAME is also the name of a table or figure of the paper, such as table2 or figure1, or paper for all of them. Then the
command does the runs and timings that are not among the records yet, and draws the paper's layout with our values and
the paper's (docs/paper.md). Words KEY=VALUE: scale=demo (or small, medium, paper), seeds=[0,1], timing.processes=6,
timing.budget=…, and options of all runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rmsexp import config
from rmsexp.config.words import overrides
from rmsexp.system import process
from rmsexp.system.command_line import REPORTED, Parser, config_dir_words, documentation, entry_point
from rmsexp.system.lock import Lock, RunLockedError

if TYPE_CHECKING:
    from rmsexp.campaign.timing import Timing
    from rmsexp.commands.goals import Goal
    from rmsexp.work.worker import Worker


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    with process.ending_on_signals():  # between runs; during a run the trainer handles signals, and saves the run first
        from rmsexp.commands import goals

        words = overrides(arguments.words, arguments.config_dir)
        goal = goals.read(arguments.name, words, arguments.config_dir)
        if arguments.plan:
            goal.print_plan()
            return 0
        if arguments.register:
            print(f"registered  {goal.register()}")
            return 0
        if arguments.jobs == 1:
            return _work(goal, arguments)
        from rmsexp.work import workers

        status = workers.start(arguments.jobs, main, [arguments.name, *words, *config_dir_words(arguments.config_dir)])
        if status < 128:
            goal.conclude()
        return status


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m rmsexp.campaign",
        description=documentation(__file__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = ", ".join([*config.options("campaign"), *sorted(config.options("item"), key=len), "paper"])
    parser.add_argument("name", metavar="NAME", help=f"one of {known}, or your own campaign")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    parser.add_config_dir("a folder of your own configs, such as norms, tasks and campaigns")
    parser.add_argument("--plan", action="store_true", help="print runs and costs instead of training")
    parser.add_argument("--register", action="store_true", help="register the campaign's rules, and end")
    parser.add_argument("--jobs", type=_count, default=1, metavar="N", help="number of workers to start here")
    parser.add_argument("--on", type=_address, metavar="ray[=ADDRESS]", help="do the runs as tasks of a cluster of Ray")
    parser.add_argument("--of", type=_count, default=1, help=argparse.SUPPRESS)  # of how many workers this is one
    arguments = parser.parse_intermixed_args(argv)
    if (arguments.plan or arguments.register) and (arguments.on is not None or arguments.jobs > 1):
        parser.error("--plan and --register do no runs, so --jobs and --on do not go with them")
    if arguments.on is not None and arguments.jobs > 1:
        parser.error("--jobs does not go with --on ray, which does as many runs at a time as the cluster has cores for")
    return arguments


def _address(text: str) -> str:
    """Return the address of a cluster of Ray, or "" for the one that Ray finds."""
    name, _, address = text.partition("=")
    if name != "ray":
        raise argparse.ArgumentTypeError(f"{text!r} is neither ray nor ray=ADDRESS")
    return address


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 256")
    return int(text)


def _work(goal: Goal, arguments: argparse.Namespace) -> int:
    """Do runs that are left and, after them, the timings; return the exit status.

    If this process is the command's only worker, it also prints the verdicts or draws the items.
    """
    worker = _worker(goal, arguments)
    signum = worker.work()
    elsewhere = worker.failed_in_others()
    for job, message in elsewhere.items():
        worker.report(f"failed in another worker: {job.folder}: {message}")
    failed = len(worker.failed) + len(elsewhere)
    try:
        for timing in [] if failed else goal.timings():
            if signum is None:
                signum = _measure(timing, worker.report, _command(arguments))
    except REPORTED:
        if arguments.of == 1:
            goal.conclude()  # no claim depends on times
        raise
    if signum is not None:
        print("stopped; repeat the command to continue")
        return 128 + signum
    if failed:
        print(f"{failed} run{'s' if failed > 1 else ''} failed; repeat the command to try them again", file=sys.stderr)
    if arguments.of == 1:
        goal.conclude()
    return int(failed > 0)


def _measure(timing: Timing, report: Callable[[str], None], typed: Sequence[str]) -> int | None:
    """Time the steps and write the record, unless another worker is doing so or has done so.

    Return the number of the signal that stopped it, or None. If it is stopped or fails, the record has the processes
    that have measured, and the timing is left to the next command. This process must not be a worker that others wait
    for (:func:`rmsexp.system.machine_lock.working`). ``typed``: the words of the command line, for the record.

    Raises: ProcessError as :func:`rmsexp.measure.processes.measure`.
    """
    from rmsexp.measure import processes
    from rmsexp.records.frames import timing_records

    with suppress(RunLockedError), Lock(timing.lock, timing.lock.parent).held():
        if timing.is_left():

            def show(folder: Path) -> None:
                report(f"timing  {folder / timing_records.FILE}")

            stop = processes.record(timing.jobs, timing.options, report, typed, show)
            return None if stop is None else stop.signum
    return None


def _command(arguments: argparse.Namespace) -> list[str]:
    """Return the words of the command line that was typed, also in a worker that it has started."""
    typed = ["python", "-m", "rmsexp.campaign", arguments.name, *arguments.words]
    typed += config_dir_words(arguments.config_dir)
    if arguments.of > 1:
        typed += ["--jobs", str(arguments.of)]
    if arguments.on is not None:
        typed += ["--on", "=".join(filter(None, ("ray", arguments.on)))]
    return typed


def _worker(goal: Goal, arguments: argparse.Namespace) -> Worker:
    from rmsexp.work.on_ray import RayWorker
    from rmsexp.work.worker import Worker

    def report(line: str) -> None:
        print(line, flush=True)

    if arguments.on is None:
        return Worker(goal.runs, arguments.of, report)
    return RayWorker(goal.runs, 1, report, address=arguments.on or None, config_dir=arguments.config_dir)
