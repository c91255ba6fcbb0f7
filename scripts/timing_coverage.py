"""Simulate interleaved timings, and count how often their intervals hold the true ratio.

The logarithm of a ratio has normal noise in each round, with a standard deviation of 0.03: independent, or with an
autocorrelation of 0.3 or 0.6 from round to round (AR(1)). Each of six processes has a true ratio of its own, which
differs from the ratio that is sought by 0, 1 or 2 % (standard deviation). A process stops as it does in ``python -m
rmsexp.timing``: when its interval is at most 0.02 wide, or after 20, 60 or 200 rounds.

Prints a Markdown table: the share of intervals over six processes that hold the ratio sought, and the share of the
processes whose own interval, over rounds, holds it. Without spread this is the coverage of the interval within a
process. A share of 95 % in 2,000 trials has a standard error of 0.5 points.

    python scripts/timing_coverage.py                 # 2,000 trials per line: some two minutes
    python scripts/timing_coverage.py --trials 200
"""

import argparse
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from rmsexp.compare.records.ratios import Interval, over_processes
from rmsexp.measure.interleaved import Round
from rmsexp.measure.options import TimingConfig
from rmsexp.measure.steps import Budget, measure_ratios

TRUE, NOISE, PROCESSES = 0.9, 0.03, 6
CORRELATIONS, ROUNDS, SPREADS = (0.0, 0.3, 0.6), (20, 60, 200), (0.0, 0.01, 0.02)


def noise(correlation: float, generator: np.random.Generator) -> Iterator[float]:
    """Yield a stationary AR(1) process with standard deviation ``NOISE``."""
    value = generator.normal(0, NOISE)
    while True:
        yield value
        value = correlation * value + math.sqrt(1 - correlation**2) * generator.normal(0, NOISE)


def measure_process(correlation: float, rounds: int, generator: np.random.Generator) -> tuple[Interval, int]:
    """Return the ratio that a process without a ratio of its own finds, and its number of rounds."""
    watch: Any = SimpleNamespace(seconds=0.0)  # counts rounds, so the budget is a number of rounds, too

    def simulated() -> Iterator[Round]:
        for value in noise(correlation, generator):
            watch.seconds += 1
            yield Round([TRUE * math.exp(value), 1.0], 0.0)

    options = TimingConfig(reference="reference")
    measured = measure_ratios(simulated(), ["norm", "reference"], options, Budget(watch, rounds), lambda _: None)
    return measured.ratios["norm"], len(measured.rounds)


def holds(interval: Interval) -> bool:
    return interval.low <= TRUE <= interval.high


def moved(interval: Interval, by: float) -> Interval:
    """Return the interval that a process finds whose own ratio differs by exp(``by``)."""
    return Interval(*(end * math.exp(by) for end in interval))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000, help="number of simulated timings per line (2000)")
    trials = parser.parse_args().trials
    generator = np.random.default_rng(0)
    print("| autocorrelation | rounds at most | rounds, mean | spread of processes | six processes | one process |")
    print("| --- | --- | --- | --- | --- | --- |")
    for correlation in CORRELATIONS:
        for rounds in ROUNDS:
            measured = [measure_process(correlation, rounds, generator) for _ in range(trials * PROCESSES)]
            used = np.mean([count for _, count in measured])
            for spread in SPREADS:
                own = [moved(interval, generator.normal(0, spread)) for interval, _ in measured]
                ratios = np.reshape([found.ratio for found in own], (trials, PROCESSES))
                together = [over_processes(each) for each in ratios.tolist()]
                shares = [f"{100 * np.mean([holds(found) for found in each]):.1f} %" for each in (together, own)]
                print(f"| {correlation:g} | {rounds} | {used:.0f} | {spread:.0%} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
