"""Measure the training speed of a task in predictions per second: of target tokens, padding excluded, tokens, images, …

    python scripts/words_per_second.py task=rnnsearch norm=rms norm.impl=fused scale=small batch_size=80
    python scripts/words_per_second.py task=language_model norm=rms norm.impl=fused scale=small

Prints the speed over all steps (tokens of all batches divided by the seconds of all steps, including loading the
batches), and the median and the 10 % and 90 % quantiles of the speeds of single steps. They are also written to
a record (check_record.py).
"""

import argparse
import time

import check_record
import numpy as np
import torch

from rmsexp import config
from rmsexp.command_line import inform
from rmsexp.measure.steps import make_stepper
from rmsexp.train.device import set_up_device
from rmsexp.train.step import WARMUP_STEPS, synchronise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps", type=check_record.at_least(1), default=60, help="number of timed steps, after the warm-up (60)"
    )
    check_record.add_option(parser)
    parser.add_argument("overrides", nargs="*", help="as on the command line of rmsexp")
    arguments = parser.parse_args()
    job = config.job([config.expand_home(word) for word in arguments.overrides])
    device = set_up_device(job.config)
    check = check_record.Check("words_per_second", arguments.results, device)
    stepper = make_stepper(job, device, inform)
    tokens, seconds = [], []
    with check.measuring():
        for step in range(WARMUP_STEPS + arguments.steps):
            start = time.perf_counter()
            batches = stepper.task.batches(step)
            tokens.append(int(stepper.take(step, batches).predictions))
            synchronise(device)
            seconds.append(time.perf_counter() - start)
    tokens, seconds = tokens[WARMUP_STEPS:], seconds[WARMUP_STEPS:]
    low, median, high = np.quantile(np.divide(tokens, seconds), [0.1, 0.5, 0.9])
    name = stepper.task.predictions
    print(f"{sum(tokens) / sum(seconds):.0f} {name} per second over {arguments.steps} steps", end=" ")
    print(f"(steps: median {median:.0f}, 10 % to 90 %: {low:.0f} to {high:.0f})")
    identity = {"task": job.config.task, "setting": job.setting, "series": job.series}
    check.write(
        identity | {"threads": torch.get_num_threads(), "predictions": name, "tokens": tokens, "seconds": seconds}
    )


if __name__ == "__main__":
    check_record.run(main)
