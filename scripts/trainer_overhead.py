"""Measure how much longer the trainer takes than a plain PyTorch loop (bare_loop.py), with equal models and batches.

With task=language_model the plain loop has a model of its own, of torch's layers (bare_language_model.py), and the
trainer is timed twice: with eager and with fused norms.

Each round is a block of steps of each loop, in random order, in one process. Warm-up, evaluation and checkpoints are
excluded: the plain loop has none, and the trainer saves at the end of each block, far more often than in a run. The
trainer's time includes other work that the plain loop does not do: noise that depends on the step, the norm of the
gradient, the clock and the records.

    python scripts/trainer_overhead.py --rounds 30 --steps 60 scale=demo norm=rms
    python scripts/trainer_overhead.py --steps 20 task=language_model scale=small norm=rms threads=1

The times are also written to a record (check_record.py).
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bare_language_model
import bare_loop
import check_record
import numpy as np
import torch

from rmsexp import config, tasks
from rmsexp.norms import Norm
from rmsexp.records.record import RunFolder
from rmsexp.report.tables import formats
from rmsexp.rules.ratios import paired_ratio
from rmsexp.system import command_line
from rmsexp.train.checkpoint import Identity
from rmsexp.train.contention import Contention
from rmsexp.train.device import set_up_device
from rmsexp.train.loop import Trainer, restore
from rmsexp.train.progress import Failures
from rmsexp.train.step import WARMUP_STEPS, Stepper
from rmsexp.train.writer import Writer

PLAIN = "plain loop"
SHARED: dict[str, Any] = {"precision": "float32", "micro_batches": 1, "compile": False}
BARE_LOOP = SHARED | {"optim.clip": None}  # options that bare_loop.py has
BARE_LANGUAGE_MODEL = SHARED | {  # options of the model and of the step that bare_language_model.py has
    "norm.name": "rms",
    "norm.eps": 1e-5,
    "norm.gain": True,
    "norm.weight_offset": False,
    "model.placement": "pre",
    "model.activation": "swiglu",
    "model.qk_norm": False,
    "model.tied": True,
    "model.embedding_scale": False,
    "norm.bias": None,
    "norm.eps_inside": True,
    "optim.clipping": "global",
}
BARE = {"cifar10": ("loop", BARE_LOOP), "language_model": ("language model", BARE_LANGUAGE_MODEL)}
# a progress display that shows nothing
SILENT: Any = SimpleNamespace(update=lambda *_: None, report_evaluation=lambda *_: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=command_line.number(int, 2), default=30, help="number of rounds (30)")
    parser.add_argument("--steps", type=command_line.number(int, 1), default=60, help="steps per block (60)")
    check_record.add_option(parser)
    parser.add_argument("overrides", nargs="*", help="as on the command line of rmsexp")
    arguments = parser.parse_args()
    job = config.job(["device=cpu", *map(config.expand_home, arguments.overrides)])
    cfg, steps = job.config, arguments.steps
    if cfg.device != "cpu":
        parser.error("the loops are compared on a CPU: leave device= out")
    try:
        check_model(job)
    except ValueError as error:
        parser.error(str(error))
    set_up_device(cfg)
    check = check_record.Check("trainer_overhead", arguments.results)
    task = tasks.make(job, torch.device("cpu"))
    task.prepare(print)
    timed = loops(task, job, steps)
    rounds = []
    with check.measuring():
        for number in range(arguments.rounds + 1):
            check.probe()
            order = random.Random(number).sample(list(timed), len(timed))
            rounds.append({name: timed[name]() for name in order})
    seconds = {name: [one[name] for one in rounds[1:]] for name in timed}  # the first round is the warm-up
    tokens = cfg.batch_size * cfg.context if cfg.task == "language_model" else None
    print(f"task={cfg.task} norm={job.series} scale={job.setting}")
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {arguments.rounds} rounds of {steps} steps")
    for name, values in seconds.items():
        step, ratio = float(np.median(values)) / steps, paired_ratio(values, seconds[PLAIN])
        speed = f", {tokens / step:,.0f} tokens per second" if tokens else ""
        print(f"{name:14} {step * 1e3:.2f} ms per step{speed}; time / that of the {PLAIN}: {formats.ratio(ratio)}")
    identity = {"task": cfg.task, "setting": job.setting, "series": job.series, "steps": steps}
    check.write(identity | {"tokens_per_step": tokens, "seconds": seconds})


def loops(task: Any, job: config.Job, steps: int) -> dict[str, Callable[[], float]]:
    """Return functions that train for ``steps`` and return the seconds, by loop. Replaces ``task.evaluate``."""
    cfg, device = replace(job.config, max_steps=steps), torch.device("cpu")
    task.evaluate = lambda *_: {task.target.split: {task.target.metric: 1.0}}

    def trainer_seconds(norm: Norm) -> float:
        model = task.build(norm)
        with tempfile.TemporaryDirectory() as folder:
            stepper = Stepper(cfg, task, model, device)
            files = RunFolder(Path(folder))
            identity, contention = Identity(cfg.seed, "", ""), Contention(device)
            state, clock = restore(stepper, files, identity, None, print)
            writer = Writer(files, job.series)
            writer.begin(identity, {}, {"sessions": [{"from_step": 0}]}, contention.report(), Failures())
            trainer = Trainer(stepper, state, clock, writer, contention=contention, display=SILENT)
            began = time.perf_counter()
            trainer.run()
            excluded = sum(trainer.clock.seconds[bucket] for bucket in ("warmup", "eval", "checkpoint"))
            return time.perf_counter() - began - excluded

    def bare_seconds() -> float:
        if cfg.task == "language_model":
            own = bare_language_model.Model(cfg.model, task.vocabulary, cfg.context)
            return bare_language_model.train(own, cfg, lambda step: task.batches(step)[0], steps, WARMUP_STEPS)
        model = task.build(job.norm)
        task.initialise(model)
        return bare_loop.train(model, lambda step: task.batches(step)[0], cfg.optim.lr, steps, WARMUP_STEPS)

    norms = {"trainer": job.norm}
    if cfg.task == "language_model":
        norms = {f"trainer, {impl}": replace(job.norm, impl=impl) for impl in ("eager", "fused")}
    return {name: partial(trainer_seconds, norm) for name, norm in norms.items()} | {PLAIN: bare_seconds}


def check_model(job: config.Job) -> None:
    """Raise ValueError if the plain loop would not do the same steps as the trainer."""
    if job.config.task not in BARE:
        raise ValueError(f"task={job.config.task} has no plain loop to compare with; use one of {', '.join(BARE)}")
    name, options = BARE[job.config.task]
    values = config.flatten(job.resolved)
    for key, value in options.items():
        if values[key] != value:
            raise ValueError(f"{key} is {values[key]}, but the plain {name} has {value}; leave {key} out")


if __name__ == "__main__":
    check_record.run(main)
