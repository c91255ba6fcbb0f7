"""Test whether runs are marked as disturbed: train beside planted neighbours, and alone, in random order.

    python scripts/planted_neighbours.py [--runs 20] [--quiet 40] [--results results] [KEY=VALUE ...]

Each run is ``python -m rmsexp`` on one thread and one core, for twenty seconds to a minute; words KEY=VALUE change it.
Beside it is

- quiet        nothing;
- same_core    a process that computes on the run's core;
- other_core   a process that computes on another core.

The machine needs at least two cores. Campaign workers pause during each run. A finished run is a line in
``<results>/checks/planted_neighbours.jsonl``; the same command goes on after the last one. When all runs are done,
their record is written (see check_record.py) and the lines are removed.

Of the runs of same_core at least 90 % should be marked as disturbed, of the quiet ones at most 10 %.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import check_record

from rmsexp import config
from rmsexp.records import record
from rmsexp.system import process
from rmsexp.system.command_line import ReportedError, inform
from rmsexp.system.machine_lock import measuring

NAME = "planted_neighbours"
WORDS = ("task=order_embedding", "norm=rms", "scale=demo", "max_steps=1500", "eval_every=1500", "checkpoint_every=1500")
WORDS += ("log_every=15", "threads=1", "device=cpu")
# A neighbour prints a line when it is ready. It ends when its parent's id changes, that is, when this script has ended.
NEIGHBOUR = """
import os
parent = os.getppid()
print(flush=True)
while os.getppid() == parent:
    sum(range(100_000))
"""
KINDS = {"quiet": None, "same_core": 0, "other_core": 1}  # the number of the neighbour's core
TARGETS = {"quiet": (0.0, 0.1), "same_core": (0.9, 1.0)}  # least and largest share of marked runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="number of runs beside each kind of neighbour (20)")
    parser.add_argument("--quiet", type=int, default=40, help="number of runs without a neighbour (40)")
    check_record.add_option(parser)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as on the command line of rmsexp")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("this needs two cores; taskset or the container allows one")
    words = [*WORDS, *map(config.expand_home, arguments.overrides)]
    job = config.job(words)  # a mistake is reported before the first run
    numbers = dict.fromkeys(KINDS, arguments.runs) | {"quiet": arguments.quiet}
    planned = [{"kind": kind, "words": words} for kind in check_record.shuffled(numbers)]
    runs = check_record.Parts(NAME, arguments.results, planned)
    with process.ending_on_signals():  # so that a run and its neighbour end, too
        for number in runs.left:
            runs.add(train(planned[number]["kind"], words, cores))
            print(f"{number + 1}/{len(planned)} {describe(runs.done[-1])}", flush=True)
    runs.write({"threads": job.config.threads, "runs": runs.done, "summary": summarise(runs.done)})


def train(kind: str, words: list[str], cores: list[int]) -> dict[str, Any]:
    """Do a run beside a neighbour of this kind; return what its record says about time and contention.

    Raises: ReportedError if the run fails.
    """
    with tempfile.TemporaryDirectory() as folder, measuring(inform):
        with neighbour(kind, cores), child(["-m", "rmsexp", *words, f"results={folder}"], cores[0]) as run:
            messages = run.communicate()[1]
        if run.returncode:
            reason = messages.strip().splitlines()[-1] if messages.strip() else f"exit status {run.returncode}"
            raise ReportedError(f"a run failed: {reason}")
        (path,) = record.find_runs(Path(folder))
        files = record.RunFolder(path)
        session, rows = files.read_run()["sessions"][-1], files.read_metrics()[0]
    seconds = [row["seconds"]["train"] for row in rows if row["split"] == "train"]
    return {"contention": session["contention"], "train_seconds": seconds[-1], "date": session["started"]}


@contextlib.contextmanager
def neighbour(kind: str, cores: list[int]) -> Iterator[None]:
    """Inside the context, a neighbour of this kind is at work."""
    core = KINDS[kind]
    if core is None:
        yield
        return
    with child(["-c", NEIGHBOUR], cores[core]) as started:
        assert started.stdout is not None
        started.stdout.readline()
        yield


@contextlib.contextmanager
def child(words: list[str], core: int) -> Iterator[subprocess.Popen[str]]:
    """Start Python on one core; kill it at the end of the context unless it has ended."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, *words], stdout=pipe, stderr=pipe, text=True) as started:
        try:
            os.sched_setaffinity(started.pid, {core})  # before it starts threads, which inherit this
            yield started
        finally:
            started.kill()


def describe(run: dict[str, Any]) -> str:
    contention = run["contention"]
    return (
        f"{run['kind']:10} {contention['state']:9} waited {contention['waited']:.4f}, steal {contention['steal']:.4f}; "
        f"{run['train_seconds']:.1f} s"
    )


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Print and return, for each kind, the numbers of all and of marked runs, and their time relative to quiet runs.

    This time is None without quiet runs. Kinds without runs are left out.
    """
    by_kind = {kind: [run for run in runs if run["kind"] == kind] for kind in KINDS}
    seconds = {kind: [run["train_seconds"] for run in chosen] for kind, chosen in by_kind.items()}
    summary = {}
    for kind, chosen in by_kind.items():
        if not chosen:
            continue
        marked = sum(run["contention"]["state"] == "disturbed" for run in chosen)
        alone = seconds["quiet"]
        slowdown = statistics.median(seconds[kind]) / statistics.median(alone) if alone else None
        verdict = ""
        if kind in TARGETS:
            low, high = TARGETS[kind]
            verdict = ", as it should be" if low <= marked / len(chosen) <= high else ", NOT as it should be"
        relative = "" if slowdown is None else f"; steps take x{slowdown:.2f} (median)"
        print(f"{kind:10} {marked} of {len(chosen)} marked as disturbed{verdict}{relative}")
        summary[kind] = {"runs": len(chosen), "marked": marked, "slowdown": slowdown and round(slowdown, 3)}
    return summary


if __name__ == "__main__":
    check_record.run(main)
