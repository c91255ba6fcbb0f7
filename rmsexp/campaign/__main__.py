"""``python -m rmsexp.campaign NAME``: do all runs that answer a question, and decide its claims; or make a table or a
figure of the paper.

    --plan     print the runs, what they take, and which are done; train nothing but trials of 20 steps
    --jobs N   start N workers here, whose lines begin with their number; default: one worker

NAME is a file configs/campaign/NAME.yaml, which says what is asked, tuned, trained and claimed (docs/campaigns.md). The
same command again continues. Typed several times, on one machine or on many that share the results, it makes as many
workers; no two of them do the same run. A worker uses one thread unless threads=… is set. Words KEY=VALUE change the
campaign (norms=[ln,rms], margin=1, tune.…, final.…) or all of its runs (task=cifar10, data.root=…, results=…).

NAME is also the name of a table or figure of the paper, such as table2 or figure1, or paper for all of them. Then the
command does the runs and timings that are not among the records yet, and draws the paper's layout with our values and
the paper's (docs/paper.md). Words KEY=VALUE: scale=demo (or small, medium, paper), seeds=[0,1], timing.processes=6,
timing.budget=…, and options of all runs.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

from rmsexp import config, process
from rmsexp.command_line import Parser, documentation, entry_point

if TYPE_CHECKING:
    from rmsexp.campaign.goals import Goal


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    unhandled = [number for number in process.stopping_signals() if not callable(signal.getsignal(number))]
    with process.handling(_end, unhandled):
        from rmsexp.campaign import goals

        words = [config.expand_home(word) for word in arguments.words]
        goal = goals.read(arguments.name, words, arguments.config_dir)
        if arguments.plan:
            goal.print_plan()
            return 0
        if arguments.jobs == 1:
            return _work(goal, arguments.of)
        from rmsexp.campaign import workers

        folder = [] if arguments.config_dir is None else ["--config-dir", arguments.config_dir]
        status = workers.start(arguments.jobs, [arguments.name, *words, *folder])
        if status < 128:
            goal.conclude()
        return status


def _end(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """End the process between runs; during a run the trainer handles signals, and saves the run first."""
    raise SystemExit(128 + signum)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m rmsexp.campaign",
        description=documentation(__file__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = ", ".join([*config.options("campaign"), *sorted(config.options("item"), key=len), "paper"])
    parser.add_argument("name", metavar="NAME", help=f"one of {known}, or your own campaign")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("-cd", "--config-dir", metavar="DIR", help="a folder of your own configs")
    parser.add_argument("--plan", action="store_true", help="print runs and costs instead of training")
    parser.add_argument("--jobs", type=_count, default=1, metavar="N", help="number of workers to start here")
    parser.add_argument("--of", type=_count, default=1, help=argparse.SUPPRESS)  # of how many workers this is one
    return parser.parse_intermixed_args(argv)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 256")
    return int(text)


def _work(goal: Goal, of: int) -> int:
    """Be a worker, one of ``of`` on this machine; conclude if it is the only one. Return the exit status."""
    from rmsexp.campaign.worker import Worker

    worker = Worker(goal.runs, of, lambda line: print(line, flush=True))
    signum = worker.work()
    if signum is not None:
        print("saved; repeat the command to continue")
        return 128 + signum
    if not worker.failed:
        for timing in goal.timings():
            timing.measure(worker.report)
    else:
        print(f"{len(worker.failed)} runs failed; repeat the command to try them again", file=sys.stderr)
    if of == 1:
        goal.conclude()
    return int(bool(worker.failed))


if __name__ == "__main__":
    sys.exit(main())
