"""How many real target tokens a second a translation task trains on.

    python scripts/words_per_second.py task=rnnsearch norm=rms norm.impl=fused scale=small batch_size=80

Prints the rate over all steps (tokens of all batches by the seconds of all steps, batches included) and its quantiles.
"""

import sys
import time

import numpy as np

from rmsexp import config, tasks
from rmsexp.train.device import set_up_device
from rmsexp.train.step import Settings, Stepper

WARM_UP, STEPS = 3, 60


def main() -> None:
    job = config.job([config.expand_home(word) for word in sys.argv[1:]])
    cfg = job.config
    device = set_up_device(cfg)
    task = tasks.make(job, device)
    task.prepare(lambda text: print(text, file=sys.stderr))
    model = task.build(job.norm)
    task.initialise(model)
    stepper = Stepper(task, model, task.optimizer(model), cfg.schedule, Settings.of(cfg, device))
    tokens, seconds = [], []
    for step in range(WARM_UP + STEPS):
        began = time.perf_counter()
        batches = task.batches(step)
        stepper.take(step, batches)
        seconds.append(time.perf_counter() - began)
        tokens.append(sum(len(batch.real) for batch in batches))
    tokens, seconds = tokens[WARM_UP:], seconds[WARM_UP:]
    low, median, high = np.quantile(np.divide(tokens, seconds), [0.1, 0.5, 0.9])
    print(f"{sum(tokens) / sum(seconds):.0f} target tokens a second over {STEPS} steps", end=" ")
    print(f"(steps: {median:.0f}, 10 % to 90 %: {low:.0f} to {high:.0f})")


if __name__ == "__main__":
    main()
