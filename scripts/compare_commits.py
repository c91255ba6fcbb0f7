"""Whether training steps became quicker from one commit to another, measured by turns.

    python scripts/compare_commits.py BEFORE . -- task=rnnsearch norm=rms scale=small data.root=~/data

BEFORE and the second folder are checkouts of two commits; what follows -- is a command line of ``python -m rmsexp``.
One process a contestant (the first checkout as it is, the second with norm.impl=eager and norm.impl=fused) holds its
model and waits for its turn; in each round all take a block of the same steps, in random order. Prints the medians of a
step's milliseconds (with 10 % and 90 % quantiles) and the ratios within rounds, with 95 % intervals.
"""

import argparse
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rmsexp.compare.records.ratios import paired_ratio

WORKER = """
import sys, time
from importlib import import_module
from rmsexp import config
from rmsexp.train.device import set_up_device
from rmsexp.train.step import Settings, Stepper
job = config.job(sys.argv[1:])
cfg = job.config
device = set_up_device(cfg)
# not tasks.make(job, device), which older commits do not have
task = import_module(f"rmsexp.tasks.{cfg.task}").Task(cfg, device)
task.prepare(lambda text: None)
model = task.build(job.norm)
task.initialise(model)
stepper = Stepper(task, model, task.optimizer(model), cfg.schedule, Settings.of(cfg, device))
print("ready", flush=True)
for line in sys.stdin:
    first, count = map(int, line.split())
    batches = [task.batches(step) for step in range(first, first + count)]
    began = time.perf_counter()
    for step, some in enumerate(batches, first):
        stepper.take(step, some)
    print((time.perf_counter() - began) / count, flush=True)
"""
WARM_UP = 3


class Contestant(NamedTuple):
    name: str
    process: subprocess.Popen[str]

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()}")
        return line

    def take(self, first: int, count: int) -> float:
        """Seconds of a step, in a block of so many from the first on."""
        assert self.process.stdin is not None
        print(first, count, file=self.process.stdin, flush=True)
        return float(self.answer())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=2, help="of a block (2)")
    parser.add_argument("overrides", nargs="+", help="as on the command line of rmsexp, after --")
    arguments = parser.parse_args()
    asked = {
        "before, eager": (arguments.before, []),
        "after, eager": (arguments.after, []),
        "after, fused": (arguments.after, ["norm.impl=fused"]),
    }
    contestants = [start(name, *what, arguments.overrides) for name, what in asked.items()]
    for one in contestants:
        one.answer()
        one.take(0, WARM_UP)
    seconds: dict[str, list[float]] = {one.name: [] for one in contestants}
    order, step = random.Random(0), WARM_UP
    for _ in range(arguments.rounds):
        for one in order.sample(contestants, len(contestants)):
            seconds[one.name].append(one.take(step, arguments.steps))
        step += arguments.steps
    for one in contestants:
        one.process.terminate()
    reference = seconds["before, eager"]
    print("| contestant | ms a step, median (10 % to 90 %) | times as quick as before (95 % interval) |")
    print("| --- | --- | --- |")
    for name, own in seconds.items():
        low, median, high = 1000 * np.quantile(own, [0.1, 0.5, 0.9])
        ratio = paired_ratio(reference, own)
        quicker = "1" if own is reference else f"{ratio.ratio:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
        print(f"| {name} | {median:.1f} ({low:.1f} to {high:.1f}) | {quicker} |")


def start(name: str, checkout: Path, more: list[str], overrides: list[str]) -> Contestant:
    # Threads of one process must not spin for work while another has its turn.
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve()), "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-c", WORKER, *map(os.path.expanduser, overrides), *more]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environment, cwd=checkout, stdin=pipe, stdout=pipe, text=True)
    return Contestant(name, process)


if __name__ == "__main__":
    main()
