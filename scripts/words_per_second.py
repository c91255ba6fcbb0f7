"""Measure the training speed of a translation task, in target tokens per second, padding excluded.

    python scripts/words_per_second.py task=rnnsearch norm=rms norm.impl=fused scale=small batch_size=80

Prints the speed over all steps (tokens of all batches divided by the seconds of all steps, including loading the
batches), and the median and the 10 % and 90 % quantiles of the speeds of single steps.
"""

import sys
import time

import numpy as np

from rmsexp import config
from rmsexp.machine_lock import measuring
from rmsexp.measure.steps import make_stepper
from rmsexp.train.device import set_up_device
from rmsexp.train.step import WARMUP_STEPS

STEPS = 60  # number of timed steps, after the warm-up


def main() -> None:
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return
    job = config.job([config.expand_home(word) for word in sys.argv[1:]])
    device = set_up_device(job.config)
    stepper = make_stepper(job, device, lambda text: print(text, file=sys.stderr))
    tokens, seconds = [], []
    with measuring(print):
        for step in range(WARMUP_STEPS + STEPS):
            start = time.perf_counter()
            batches = stepper.task.batches(step)
            stepper.take(step, batches)
            seconds.append(time.perf_counter() - start)
            tokens.append(sum(len(batch.real) for batch in batches))
    tokens, seconds = tokens[WARMUP_STEPS:], seconds[WARMUP_STEPS:]
    low, median, high = np.quantile(np.divide(tokens, seconds), [0.1, 0.5, 0.9])
    print(f"{sum(tokens) / sum(seconds):.0f} target tokens per second over {STEPS} steps", end=" ")
    print(f"(steps: median {median:.0f}, 10 % to 90 %: {low:.0f} to {high:.0f})")


if __name__ == "__main__":
    main()
