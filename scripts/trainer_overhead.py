"""What the trainer costs over a bare PyTorch loop (bare_loop.py) of the same model on the same batches.

Blocks of steps of the two alternate in one process, in random order within each pair. The trainer's time is all that a
run of it takes but for warm-up and evaluation, which the bare loop does not have: noise that depends on the step, the
norm of the gradient, the clock, records and a checkpoint at a block's end are in it.

    python scripts/trainer_overhead.py --pairs 30 --steps 60 scale=demo norm=rms
"""

import argparse
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import bare_loop
import numpy as np
import torch
from scipy.stats import bootstrap

from rmsexp import config, tasks
from rmsexp.train.interrupt import Interrupt
from rmsexp.train.loop import Trainer
from rmsexp.train.step import WARMUP_STEPS, Settings


class Silent:
    """Stands for the progress display."""

    def update(self, *_: object) -> None: ...
    def evaluated(self, *_: object) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--steps", type=int, default=60, help="of a block")
    parser.add_argument("overrides", nargs="*", help="as on the command line of rmsexp")
    arguments = parser.parse_args()
    job = config.job(arguments.overrides)
    cfg, steps = job.config, arguments.steps
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    task = tasks.make(job, torch.device("cpu"))
    task.prepare(print)
    task.evaluate = lambda _: {task.target.split: {task.target.metric: 1.0}}
    settings = Settings.of(cfg, torch.device("cpu"))
    settings = replace(settings, max_steps=steps)

    def with_trainer() -> float:
        model = task.build(job.norm)
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(task, model, task.optimizer(model), cfg.schedule, settings, Path(folder), Interrupt())
            trainer.start()
            start = time.perf_counter()
            trainer.run([], Silent(), lambda: None)  # type: ignore[arg-type]
            seconds = trainer.clock.seconds
            return time.perf_counter() - start - seconds["warmup"] - seconds["eval"]

    def bare() -> float:
        model = task.build(job.norm)
        task.initialise(model)
        return bare_loop.train(model, lambda step: task.batches(step)[0], cfg.optim.lr, steps, WARMUP_STEPS)

    loops, times = [with_trainer, bare], []
    for pair in range(arguments.pairs + 1):
        order = random.Random(pair).sample([0, 1], 2)
        seconds = {which: loops[which]() for which in order}
        times.append((seconds[0], seconds[1]))
    trainer, plain = np.array(times[1:]).T  # the first pair warms both up
    ratio = trainer / plain
    interval = bootstrap((ratio,), np.median, confidence_level=0.95, rng=0).confidence_interval
    print(f"task={cfg.task} norm={job.series} scale={job.setting}")
    print(
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, {len(ratio)} pairs of blocks of {steps} steps"
    )
    for name, seconds in (("trainer", trainer), ("bare loop", plain)):
        print(f"{name:10} {np.median(seconds) / steps * 1e3:.2f} ms a step (median)")
    print(f"ratio      {np.median(ratio):.4f} (median), 95 % interval {interval.low:.4f} to {interval.high:.4f}")


if __name__ == "__main__":
    main()
