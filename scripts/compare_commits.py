"""Measure whether training steps became faster from one commit to another.

    python scripts/compare_commits.py BEFORE AFTER -- task=rnnsearch norm=rms scale=small data.root=~/data

BEFORE and AFTER are commits, which are checked out in temporary folders; after -- come overrides as on the command line
of ``python -m rmsexp``. There are three contestants, each a process with its own model: BEFORE and AFTER with these
overrides, and AFTER with norm.impl=fused. The first two are labelled "eager", the default of norm.impl. In each round,
the contestants take the same block of steps, one after another in random order; the first step of a block does not
count. All use the CPU, unless an override names another device. Prints the median milliseconds per step (with 10 % and
90 % quantiles) and the speed-up over BEFORE, paired by round, with 95 % intervals. They are also written to a record
(check_record.py).
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import check_record
import numpy as np
import torch

from rmsexp import config
from rmsexp.rules.ratios import paired_ratio
from rmsexp.system import cores

ROOT = Path(__file__).parents[1]

# Runs in both checkouts, so it uses only what older commits have, too. They may lack train.device and tasks.make.
WORKER = """
import sys, time
import torch
from importlib import import_module
from rmsexp import config
from rmsexp.train.step import Stepper
try:
    from rmsexp.train.device import set_up_device
except ImportError:
    from rmsexp.work.runner import set_up_device
job = config.job(sys.argv[1:])
cfg = job.config
device = set_up_device(cfg)
task = import_module(f"rmsexp.tasks.{cfg.task}").Task(cfg, device)
task.prepare(lambda text: None)
model = task.build(job.norm)
task.initialise(model)
try:
    from rmsexp.train.step import Settings
    stepper = Stepper(task, model, task.optimizer(model), cfg.schedule, Settings.of(cfg, device))
except ImportError:
    stepper = Stepper(cfg, task, model, device)
wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
print("ready", flush=True)
for line in sys.stdin:
    first, count = map(int, line.split())
    batches = [task.batches(step) for step in range(first, first + count + 1)]
    stepper.take(first, batches[0])
    wait()
    start = time.perf_counter()
    for step, batch in enumerate(batches[1:], first + 1):
        stepper.take(step, batch)
    wait()
    print((time.perf_counter() - start) / count, flush=True)
"""
WARMUP_STEPS = 3


class Contestant(NamedTuple):
    """A process that runs ``WORKER``. It reads "FIRST COUNT" and prints the seconds per step of these steps."""

    name: str
    process: subprocess.Popen[str]

    def read_line(self) -> str:
        """Return the next line that the process prints. Raises: SystemExit if the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()}")
        return line

    def take(self, first: int, count: int) -> float:
        """Take step ``first`` and ``count`` steps after it; return the seconds per step of the latter."""
        assert self.process.stdin is not None
        print(first, count, file=self.process.stdin, flush=True)
        return float(self.read_line())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", help="another commit")
    parser.add_argument("--rounds", type=check_record.at_least(2), default=30, help="number of rounds (30)")
    parser.add_argument("--steps", type=check_record.at_least(1), default=3, help="timed steps per block (3)")
    check_record.add_option(parser)
    parser.add_argument("overrides", nargs="+", help="as on the command line of rmsexp, after --")
    arguments = parser.parse_args()
    overrides = with_device([config.expand_home(word) for word in arguments.overrides])
    if any(word.lstrip("+").startswith("norm.impl=") for word in overrides):
        parser.error("eager and fused norms are compared in any case: leave norm.impl= out")
    if any(word.lstrip("+").startswith("compile=") for word in overrides):
        parser.error("models are not compiled here: leave compile= out")
    job = config.job(overrides)
    check = check_record.Check("compare_commits", arguments.results, device_of(job))
    with checkouts(arguments.before, arguments.after) as (before, after):
        variants = {
            "before, eager": (before, []),
            "after, eager": (after, []),
            "after, fused": (after, ["norm.impl=fused"]),
        }
        contestants = [start(name, *variant, overrides) for name, variant in variants.items()]
        seconds = measure(contestants, arguments.rounds, arguments.steps, check)
    print_table(seconds, "before, eager")
    commits = {name: git("rev-parse", f"{getattr(arguments, name)}^{{commit}}") for name in ("before", "after")}
    threads = job.config.threads or cores.threads()
    identity = {"task": job.config.task, "setting": job.setting, "series": job.series, "threads": threads}
    check.write(commits | identity | {"steps_per_block": arguments.steps, "seconds": seconds})


def with_device(overrides: list[str]) -> list[str]:
    """Return the overrides, with ``device=cpu`` before them unless one of them names a device."""
    named = any(word.lstrip("+").startswith("device=") for word in overrides)
    return overrides if named else ["device=cpu", *overrides]


def device_of(job: config.Job) -> torch.device:
    """Return the device on which the contestants train; ``device=auto`` is CUDA where there is a GPU."""
    is_cuda = job.config.device == "cuda" or (job.config.device == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if is_cuda else "cpu")


def git(*words: str) -> str:
    """Return the output of a git command in this checkout. Raises: SystemExit with git's message if it fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def checkouts(*commits: str) -> Iterator[list[Path]]:
    """Inside the context the commits are checked out; yields their folders."""
    with tempfile.TemporaryDirectory(prefix="rmsexp-commits-") as folder:
        paths = [Path(folder, str(number)) for number in range(len(commits))]
        try:
            for path, commit in zip(paths, commits, strict=True):
                git("worktree", "add", "--detach", str(path), commit)
            yield paths
        finally:
            for path in paths:
                if path.exists():
                    git("worktree", "remove", "--force", str(path))


def measure(
    contestants: list[Contestant], rounds: int, steps: int, check: check_record.Check
) -> dict[str, list[float]]:
    """Return the seconds per step of each contestant in each round; end their processes."""
    try:
        for contestant in contestants:
            contestant.read_line()
            contestant.take(0, WARMUP_STEPS)
        seconds: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
        order, step = random.Random(0), WARMUP_STEPS + 1
        with check.measuring([contestant.process.pid for contestant in contestants]):
            for _ in range(rounds):
                check.probe()
                for contestant in order.sample(contestants, len(contestants)):
                    seconds[contestant.name].append(contestant.take(step, steps))
                step += steps + 1
        return seconds
    finally:
        for contestant in contestants:
            contestant.process.terminate()
            contestant.process.wait()


def print_table(seconds: dict[str, list[float]], reference: str) -> None:
    """Print a row per contestant: milliseconds per step, and the speed-up over the contestant named ``reference``.

    ``seconds``: seconds per step in each round, by the name of the contestant, such as "before, eager".
    """
    print("| contestant | ms per step, median (10 % to 90 %) | speed-up over before (95 % interval) |")
    print("| --- | --- | --- |")
    for name, values in seconds.items():
        low, median, high = 1000 * np.quantile(values, [0.1, 0.5, 0.9])
        ratio = paired_ratio(seconds[reference], values)
        speed_up = "1" if name == reference else f"{ratio.ratio:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
        print(f"| {name} | {median:.1f} ({low:.1f} to {high:.1f}) | {speed_up} |")


def start(name: str, checkout: Path, more: list[str], overrides: list[str], program: str = WORKER) -> Contestant:
    """Start the process of a contestant in its checkout: a program with the overrides and then ``more``."""
    # passive: the threads of an idle contestant must not spin while another contestant is timed
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve()), "OMP_WAIT_POLICY": "passive"}
    command = [
        sys.executable,
        "-P",
        "-c",
        program,
        *overrides,
        *more,
    ]  # -P: not the package in the folder of the caller
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
    return Contestant(name, process)


if __name__ == "__main__":
    check_record.run(main)
