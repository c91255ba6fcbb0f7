"""Test the interleaved timing: whether it detects a planted slowdown, and finds no difference between equal models.

Each trial times two newly made models with RMSNorm, until the interval of their ratio is narrow enough or the budget is
spent. In "same" trials the models are equal, and about 95 % of the intervals should contain 1. In "slower" trials the
second model idles after each step for a share of that step's time, and no interval should contain 1.

    python scripts/timing_power.py --same 100 --slower 20 --share 0.05 task=order_embedding threads=1
"""

import argparse
import json
import sys
import time
from functools import partial
from typing import Any

from rmsexp import config
from rmsexp.machine_lock import measuring
from rmsexp.measure import steps
from rmsexp.measure.interleaved import Contestant
from rmsexp.measure.options import TimingConfig
from rmsexp.train.device import set_up_device


class Slowed:
    """A contestant that takes each step of another contestant, and then idles for a share of the step's time."""

    def __init__(self, contestant: Contestant, share: float) -> None:
        self._contestant, self._share = contestant, share

    def take(self, step: int, batches: Any, **part: Any) -> None:
        start = time.perf_counter()
        self._contestant.take(step, batches, **part)
        end = time.perf_counter() + self._share * (time.perf_counter() - start)
        while time.perf_counter() < end:
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--same", type=int, default=100, help="number of trials with two equal models (100)")
    parser.add_argument("--slower", type=int, default=20, help="number of trials with a slowed model (20)")
    parser.add_argument(
        "--share",
        type=float,
        default=0.05,
        help="idle time after each step of the slowed model, as a share of the step's time (0.05)",
    )
    parser.add_argument(
        "--target-width", type=float, default=0.03, help="width of the interval at which a trial stops (0.03)"
    )
    parser.add_argument(
        "--budget", type=float, default=10, help="seconds after which a trial stops, however wide the interval is (10)"
    )
    parser.add_argument("overrides", nargs="*", help="as on the command line of rmsexp")
    arguments = parser.parse_args()
    trials = []
    for seed, kind in enumerate(["same"] * arguments.same + ["slower"] * arguments.slower):
        trials.append({"kind": kind} | run_trial(seed, arguments.share if kind == "slower" else 0.0, arguments))
        print(json.dumps(trials[-1]), flush=True)
    print(f"target_width {arguments.target_width:g}, budget {arguments.budget:g} s, {' '.join(arguments.overrides)}")
    for kind, contain_one in (("same", True), ("slower", False)):
        summarise([trial for trial in trials if trial["kind"] == kind], contain_one)


@measuring(partial(print, file=sys.stderr))
def run_trial(seed: int, share: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time two models, the second slowed by ``share``.

    Return the ratio second / first with its interval, the number of rounds, and why the measuring stopped.
    """
    job = config.job([*map(config.expand_home, arguments.overrides), "norm=rms"])
    options = TimingConfig(reference="first", target_width=arguments.target_width, budget=arguments.budget)
    jobs, device = {"first": job, "second": job}, set_up_device(job.config)
    timer, _, _ = steps.make_contestants(jobs, options, device, report=lambda _: None)
    timer.seed = seed
    if share:
        first, second = timer.contestants
        timer.contestants = [first, Slowed(second, share)]
    timer.warm_up()
    result = steps.measure_ratios(timer, list(jobs), options, report=lambda _: None)
    return {**result.ratios["second"]._asdict(), "rounds": len(result.rounds), "stopped": result.stopped}


def summarise(trials: list[dict[str, Any]], contain_one: bool) -> None:
    """Print the widths of the intervals, and how many contain 1 (with ``contain_one``) or exclude it (without)."""
    if not trials:
        return
    right = sum((trial["low"] <= 1 <= trial["high"]) == contain_one for trial in trials)
    widths = sorted(trial["high"] - trial["low"] for trial in trials)
    print(
        f"{right} of {len(trials)} intervals {'contain' if contain_one else 'exclude'} 1; "
        f"widths: {widths[0]:.4f} to {widths[-1]:.4f}, median {widths[len(widths) // 2]:.4f}"
    )


if __name__ == "__main__":
    main()
