"""Measure how much longer the trainer takes than a plain PyTorch loop (bare_loop.py), with equal models and batches.

With task=language_model the plain loop has a model of its own, of torch's layers (bare_language_model.py).

Each pair is a block of steps of the trainer and a block of the plain loop, in random order, in one process. Warm-up and
evaluation are excluded. The trainer's time includes work that the plain loop does not do: noise that depends on the
step, the norm of the gradient, the clock, the records and the checkpoints.

    python scripts/trainer_overhead.py --pairs 30 --steps 60 scale=demo norm=rms
    python scripts/trainer_overhead.py --steps 20 task=language_model scale=small norm=rms norm.impl=fused threads=1

The ratio is also written to a record (check_record.py).
"""

import argparse
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import bare_language_model
import bare_loop
import check_record
import numpy as np
import torch
from scipy.stats import bootstrap

from rmsexp import config, tasks
from rmsexp.record import RunFolder
from rmsexp.train.contention import Contention
from rmsexp.train.interrupt import Interrupt
from rmsexp.train.loop import Trainer, restore
from rmsexp.train.progress import ProgressDisplay
from rmsexp.train.step import WARMUP_STEPS, Settings, Stepper

BARE_LANGUAGE_MODEL = {  # options of the model and of the step that bare_language_model.py has
    "norm.name": "rms",
    "norm.eps": 1e-5,
    "norm.gain": True,
    "norm.weight_offset": False,
    "model.placement": "pre",
    "model.activation": "swiglu",
    "model.qk_norm": False,
    "model.tied": True,
    "precision": "float32",
    "micro_batches": 1,
    "optim.clipping": "global",
    "compile": False,
}


class Silent:
    """A progress display that shows nothing."""

    def update(self, *_: object) -> None: ...
    def report_evaluation(self, *_: object) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30, help="number of pairs of blocks (30)")
    parser.add_argument("--steps", type=int, default=60, help="steps per block (60)")
    check_record.add_option(parser)
    parser.add_argument("overrides", nargs="*", help="as on the command line of rmsexp")
    arguments = parser.parse_args()
    job = config.job([*map(config.expand_home, arguments.overrides)])
    cfg, steps = job.config, arguments.steps
    check_model(job)
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    check = check_record.Check("trainer_overhead", arguments.results)
    task = tasks.make(job, torch.device("cpu"))
    task.prepare(print)
    task.evaluate = lambda *_: {task.target.split: {task.target.metric: 1.0}}
    settings = replace(Settings.of(cfg, torch.device("cpu")), max_steps=steps)

    def trainer_seconds() -> float:
        model = task.build(job.norm)
        with tempfile.TemporaryDirectory() as folder:
            stepper = Stepper(task, model, task.optimizer(model), cfg.schedule, settings)
            files, display = RunFolder(Path(folder)), cast(ProgressDisplay, Silent())
            start, contention = restore(stepper, files), Contention(settings.device)
            trainer = Trainer(stepper, start, files, Interrupt(), contention, [], display, lambda: None)
            began = time.perf_counter()
            trainer.run()
            excluded = trainer.clock.seconds["warmup"] + trainer.clock.seconds["eval"]
            return time.perf_counter() - began - excluded

    def bare_seconds() -> float:
        if cfg.task == "language_model":
            own = bare_language_model.Model(cfg.model, task.vocabulary, cfg.context)
            return bare_language_model.train(own, cfg, lambda step: task.batches(step)[0], steps, WARMUP_STEPS)
        model = task.build(job.norm)
        task.initialise(model)
        return bare_loop.train(model, lambda step: task.batches(step)[0], cfg.optim.lr, steps, WARMUP_STEPS)

    loops, pairs = [trainer_seconds, bare_seconds], []
    with check.measuring():
        for number in range(arguments.pairs + 1):
            check.probe()
            seconds = {index: loops[index]() for index in random.Random(number).sample([0, 1], 2)}
            pairs.append((seconds[0], seconds[1]))
    trainer, bare = np.array(pairs[1:]).T  # the first pair is the warm-up
    ratios = trainer / bare
    interval = bootstrap((ratios,), np.median, confidence_level=0.95, rng=0).confidence_interval
    print(f"task={cfg.task} norm={job.series} scale={job.setting}")
    print(
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, {len(ratios)} pairs of blocks of {steps} steps"
    )
    for name, seconds in (("trainer", trainer), ("bare loop", bare)):
        print(f"{name:10} {np.median(seconds) / steps * 1e3:.2f} ms per step (median)")
    print(f"ratio      {np.median(ratios):.4f} (median), 95 % interval {interval.low:.4f} to {interval.high:.4f}")
    identity = {"task": cfg.task, "setting": job.setting, "series": job.series, "pairs": len(ratios), "steps": steps}
    found = {"ratio": float(np.median(ratios)), "low": float(interval.low), "high": float(interval.high)}
    check.write(identity | found | {"trainer_seconds": trainer.tolist(), "bare_seconds": bare.tolist()})


def check_model(job: config.Job) -> None:
    """Raise ValueError if the plain loop would train another language model than the trainer."""
    if job.config.task != "language_model":
        return
    values = config.flatten(job.resolved)
    for key, value in BARE_LANGUAGE_MODEL.items():
        if values[key] != value:
            raise ValueError(f"{key} is {values[key]}, but the plain language model has {value}; leave {key} out")


if __name__ == "__main__":
    main()
