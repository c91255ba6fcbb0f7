"""Test the interleaved timing: whether it detects a planted slowdown, and finds no difference between equal models.

    python scripts/timing_power.py [--equal 60] [--slowed 20] [--share 0.03] [--budget 120] [KEY=VALUE …]

Each trial is a timing in six processes of its own, of two models with RMSNorm. In "equal" trials the models are equal,
and about 95 % of the intervals should contain 1. In "slowed" trials the second model idles after each step for a share
of that step's time, and intervals should lie above 1. The trials are in random order.

A finished trial is a line in ``<results>/checks/timing_power.jsonl``; the same command goes on after the last one. When
all trials are done, their record is written (see check_record.py) and the lines are removed.
"""

import argparse
import statistics
import time
from contextlib import nullcontext
from functools import partial
from typing import Any

import check_record
from scipy.stats import binomtest

from rmsexp import config
from rmsexp.config.timing import TimingConfig
from rmsexp.measure import processes, steps
from rmsexp.measure.interleaved import Contestant
from rmsexp.records.frames import timing_records
from rmsexp.system.command_line import inform

NAME = "timing_power"
WORDS = ("task=order_embedding", "norm=rms", "threads=1", "device=cpu")
EQUAL, SLOWED = "equal", "slowed"
LEAST = 0.9  # share of trials of either kind that should be right


class Slowed:
    """A contestant that takes each step of another contestant, and then idles for a share of the step's time."""

    def __init__(self, contestant: Contestant, share: float) -> None:
        self._contestant, self._share = contestant, share

    def __call__(self, step: int, batches: Any, part: Any = nullcontext) -> None:
        start = time.perf_counter()
        self._contestant(step, batches, part)
        end = time.perf_counter() + self._share * (time.perf_counter() - start)
        while time.perf_counter() < end:
            pass


def measure_slowed(share: float, *arguments: Any) -> dict[str, Any]:
    """Measure in a process as ``steps.measure`` does, with the series "second" slowed."""
    make = steps.make_contestants

    def make_slowed(*given: Any) -> steps.Contestants:
        made = make(*given)
        place = list(made.impls).index("second")
        made.timer.contestants[place] = Slowed(made.timer.contestants[place], share)
        return made

    steps.make_contestants = make_slowed
    return steps.measure(*arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--equal", type=int, default=60, help="number of trials with two equal models (60)")
    parser.add_argument("--slowed", type=int, default=20, help="number of trials with a slowed model (20)")
    parser.add_argument("--share", type=float, default=0.03, help="idle time, as a share of the step's time (0.03)")
    parser.add_argument("--budget", type=float, default=120, help="seconds of a trial, for its six processes (120)")
    check_record.add_option(parser)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as on the command line of rmsexp")
    arguments = parser.parse_args()
    words = [*WORDS, *map(config.expand_home, arguments.overrides)]
    job = config.job(words)  # a mistake is reported before the first trial
    options = {"share": arguments.share, "budget": arguments.budget, "words": words}
    numbers = {EQUAL: arguments.equal, SLOWED: arguments.slowed}
    planned = [{"kind": kind} | options for kind in check_record.shuffled(numbers)]
    trials = check_record.Parts(NAME, arguments.results, planned)
    for number in trials.left:
        trials.add(run_trial(number, **planned[number]))
        print(f"{number + 1}/{len(planned)} {describe(trials.done[-1])}", flush=True)
    trials.write({"threads": job.config.threads, "trials": trials.done, "summary": summarise(trials.done)})


def run_trial(number: int, kind: str, share: float, budget: float, words: list[str]) -> dict[str, Any]:
    """Time two models, whose seed is the number of the trial; return what the record would say about the second."""
    job = config.job([*words, f"seed={number}"])
    options = TimingConfig(reference="first", budget=budget)
    work = partial(measure_slowed, share) if kind == SLOWED else steps.measure
    *_, content = processes.measure({"first": job, "second": job}, options, inform, work)
    _, row = timing_records.rows(content, "")
    kept = ("ratio", "low", "high", "estimates", "rounds", "time_state", "stopped")
    return {key: row[key] for key in kept} | {"date": row["started"]}


def is_right(trial: dict[str, Any]) -> bool:
    """Return whether the interval of equal models contains 1, or that of a slowed model lies above 1."""
    return trial["low"] <= 1 <= trial["high"] if trial["kind"] == EQUAL else trial["low"] > 1


def describe(trial: dict[str, Any]) -> str:
    return (
        f"{trial['kind']:6} {trial['ratio']:.4f} ({trial['low']:.4f} to {trial['high']:.4f}), "
        f"{len(trial['estimates'])} processes, {trial['rounds']} rounds, {trial['time_state']}, stopped: "
        f"{trial['stopped']}: {'right' if is_right(trial) else 'WRONG'}"
    )


def summarise(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Print and return, for each kind, how many trials are right, with a 95 % interval of their share.

    The interval is that of Clopper and Pearson.
    """
    summary = {}
    for kind, verb in ((EQUAL, "contain 1"), (SLOWED, "lie above 1")):
        chosen = [trial for trial in trials if trial["kind"] == kind]
        if not chosen:
            continue
        right = sum(map(is_right, chosen))
        low, high = binomtest(right, len(chosen)).proportion_ci()
        width = statistics.median(trial["high"] - trial["low"] for trial in chosen)
        verdict = "as it should be" if right >= LEAST * len(chosen) else "NOT as it should be"
        share = f"{right} of {len(chosen)} intervals ({100 * low:.0f} to {100 * high:.0f} %)"
        print(f"{kind:6} {share} {verb}, {verdict}; median width {width:.4f}")
        summary[kind] = {"trials": len(chosen), "right": right, "low": low, "high": high, "width": width}
    return summary


if __name__ == "__main__":
    check_record.run(main)
