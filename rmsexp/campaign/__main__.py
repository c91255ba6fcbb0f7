"""``python -m rmsexp.campaign NAME``: do all runs that answer a question, and decide its claims.

    --plan     print the runs, what they take, and which are done; train nothing but trials of 20 steps
    --jobs N   start N workers here, whose lines begin with their number; default: one worker

NAME is a file configs/campaign/NAME.yaml, which says what is asked, tuned, trained and claimed (docs/campaigns.md). The
same command again continues. Typed several times, on one machine or on many that share the results, it makes as many
workers; no two of them do the same run. A worker uses one thread unless threads=… is set. Words KEY=VALUE change the
campaign (norms=[ln,rms], margin=1, tune.…, final.…) or all of its runs (task=cifar10, data.root=…, results=…).
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
    from rmsexp.campaign.question import Question


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    with process.handling(_end, [number for number in process.stopping_signals() if number != signal.SIGINT]):
        from rmsexp.campaign import question, summary

        words = [config.expand_home(word) for word in arguments.words]
        asked = question.read(arguments.name, words, arguments.config_dir)
        if arguments.plan:
            summary.print_plan(asked)
            return 0
        if arguments.jobs == 1:
            return _work(asked, arguments.of)
        from rmsexp.campaign import workers

        folder = [] if arguments.config_dir is None else ["--config-dir", arguments.config_dir]
        status = workers.start(arguments.jobs, [arguments.name, *words, *folder])
        if status < 128:
            summary.print_verdicts(asked)
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
    parser.add_argument("name", metavar="NAME", help=f"one of {', '.join(config.options('campaign'))}, or your own")
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


def _work(asked: Question, of: int) -> int:
    """Be a worker, one of ``of`` on this machine; print the verdicts if it is the only one. Return the exit status."""
    from rmsexp.campaign import summary, timing
    from rmsexp.campaign.worker import Worker

    worker = Worker(asked, of, lambda line: print(line, flush=True))
    signum = worker.work()
    if signum is not None:
        print("saved; repeat the command to continue")
        return 128 + signum
    if not worker.failed:
        timing.measure(asked, worker.report)
    else:
        print(f"{len(worker.failed)} runs failed; repeat the command to try them again", file=sys.stderr)
    if of == 1:
        summary.print_verdicts(asked)
    return int(bool(worker.failed))


if __name__ == "__main__":
    sys.exit(main())
