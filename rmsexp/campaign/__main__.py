"""``python -m rmsexp.campaign NAME``: do all runs that answer a question, and decide its claims.

    --plan     print the runs, what they take, and which are done; train nothing but trials of 20 steps
    --jobs N   start N workers here, each with one thread; default: one worker

NAME is a file configs/campaign/NAME.yaml, which says what is asked, tuned, trained and claimed (docs/campaigns.md). The
same command again continues. Typed several times, on one machine or on many that share the results, it makes as many
workers; no two of them do the same run. Words KEY=VALUE change the campaign (norms=[ln,rms], margin=1, tune.…,
final.…) or all of its runs (task=cifar10, data.root=…, results=…).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmsexp import config, process
from rmsexp.command_line import Parser, documentation, entry_point

if TYPE_CHECKING:
    from rmsexp.campaign.question import Question


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    arguments, words = _parse(argv)
    from rmsexp.campaign import question

    asked = question.read(arguments.name, [*words, *_threads(words)], arguments.config_dir)
    if arguments.plan:
        from rmsexp.campaign import summary

        summary.print_plan(asked)
        return 0
    if arguments.jobs > 1:
        return _workers(arguments, words)
    return _work(asked, arguments.of)


def _parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
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
    arguments = parser.parse_intermixed_args(argv)
    return arguments, [config.expand_home(word) for word in arguments.words]


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 256")
    return int(text)


def _threads(words: Sequence[str]) -> list[str]:
    return [] if any(word.startswith("threads=") for word in words) else ["threads=1"]


def _work(asked: Question, of: int) -> int:
    from rmsexp.campaign import summary
    from rmsexp.campaign.worker import Worker

    process.follow_parent(process.STOPPING)
    worker = Worker(asked, of, lambda line: print(line, flush=True))
    signum = worker.work()
    if signum is not None:
        print("repeat the command to continue")
        return 128 + signum
    for job, message in worker.failed.items():
        print(f"failed: {job.folder}: {message}", file=sys.stderr)
    if of == 1:
        summary.print_verdicts(asked)
    return int(bool(worker.failed))


def _workers(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Start the workers, wait for them, and print the verdicts. Return 0, or the first exit status that is not 0."""
    from rmsexp.campaign import question, summary

    folder = [] if arguments.config_dir is None else ["--config-dir", arguments.config_dir]
    command = [sys.executable, "-m", "rmsexp.campaign", arguments.name, *words, *folder, "--of", str(arguments.jobs)]
    children = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(arguments.jobs)]
    try:
        statuses = [child.wait() for child in children]
    finally:
        for child in children:  # after Ctrl-C, which they got, too: let them save
            child.wait()
    asked = question.read(arguments.name, [*words, *_threads(words)], arguments.config_dir)
    summary.print_verdicts(asked)
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    sys.exit(main())
