"""Measure what ``monitor=true`` costs: the time of what it computes at an evaluation, in training steps.

In each round a training step and an observation (rmsexp/train/monitor.py) are timed, in one process. A run with
``evaluation=scored`` is evaluated 20 times, and observed at most once in 200 steps.

    python scripts/monitor_cost.py --rounds 10 data.root=~/data threads=1
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import check_record

from rmsexp import config, tasks
from rmsexp.config import score
from rmsexp.train.device import set_up_device
from rmsexp.train.monitor import PERIOD, Monitor
from rmsexp.train.step import Stepper

TASKS = ("cifar10", "language_model", "order_embedding", "attentive_reader", "rnnsearch", "transformer")


def measured(task_name: str, words: list[str], rounds: int) -> dict[str, Any]:
    job = config.job([f"task={task_name}", "scale=medium", "norm=rms", "norm.impl=fused", *words])
    device = set_up_device(job.config)
    task = tasks.make(job, device)
    task.prepare(lambda _: None)
    model = tasks.build(task, job)
    task.initialise(model)
    stepper = Stepper(job.config, task, model, device)
    with tempfile.TemporaryDirectory() as folder:
        monitor = Monitor(model, Path(folder), -1)
        seconds: dict[str, list[float]] = {"step": [], "observation": []}
        for step in range(rounds + 2):
            batches = task.batches(step)
            began = time.perf_counter()
            monitor.observe(lambda step=step, batches=batches: stepper.loss(step, batches[0]))
            seen = time.perf_counter()
            stepper.take(step, batches)
            if step >= 2:  # the first ones are slower
                seconds["observation"].append(seen - began)
                seconds["step"].append(time.perf_counter() - seen)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    steps = job.config.schedule.steps
    observations = len({at // PERIOD for at in score.steps(steps)})
    in_steps = medians["observation"] / medians["step"]
    found = {"task": task_name, "steps": steps, "observations": observations, "seconds": seconds, "in_steps": in_steps}
    return found | {"share": observations * in_steps / steps}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=check_record.at_least(1), default=10)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="changes to the runs")
    check_record.add_option(parser)
    arguments = parser.parse_args()
    check = check_record.Check("monitor_cost", arguments.results)
    found = []
    with check.measuring():
        for name in TASKS:
            found.append(measured(name, arguments.words, arguments.rounds))
            print(
                "{task:18} one observation takes {in_steps:.1f} steps; of a scored run {share:.1%}".format(**found[-1])
            )
            check.probe()
    check.write({"tasks": found})
    return 0


if __name__ == "__main__":
    check_record.run(main)
