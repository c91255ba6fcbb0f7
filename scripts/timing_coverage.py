"""Simulate interleaved timings, and count how often their intervals contain the true ratio.

The logarithm of a ratio has normal noise in each round, with a standard deviation of 0.03: independent, or with an
autocorrelation of 0.3 or 0.6 from round to round (AR(1)). Each of six processes has a true ratio of its own, which
differs from the ratio that is sought by 0, 1 or 2 % (standard deviation). A process does 5, 20, 60 or 200 rounds.
Unlike one of ``python -m rmsexp.timing``, it does not stop earlier when its interval is narrow: the shares would then
be those of a smaller number of rounds, which differs between lines.

Prints the share of intervals over six processes that contain the ratio sought, and the share of the processes whose own
interval, over rounds, contains it. Without spread this is the coverage of the interval within a process. A share of
95 % in 2,000 trials has a standard error of 0.5 points.

    python scripts/timing_coverage.py                 # 2,000 trials per line: some twenty seconds
    python scripts/timing_coverage.py --trials 200
"""

import argparse
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from check_record import Check, add_option, run

from rmsexp.report.tables import markup
from rmsexp.rules.ratios import Interval, over_processes, paired_ratio

TRUE, NOISE, PROCESSES = 0.9, 0.03, 6
CORRELATIONS, ROUNDS, SPREADS = (0.0, 0.3, 0.6), (5, 20, 60, 200), (0.0, 0.01, 0.02)


def noise(correlation: float, generator: np.random.Generator) -> Iterator[float]:
    """Yield a stationary AR(1) process with standard deviation ``NOISE``."""
    value = generator.normal(0, NOISE)
    while True:
        yield value
        value = correlation * value + math.sqrt(1 - correlation**2) * generator.normal(0, NOISE)


def measure_process(correlation: float, rounds: int, generator: np.random.Generator) -> Interval:
    """Return the ratio that a process without a ratio of its own finds in this number of rounds."""
    values = np.fromiter(itertools.islice(noise(correlation, generator), rounds), float)
    return paired_ratio(TRUE * np.exp(values), np.ones(rounds))


def simulate(trials: int) -> Iterator[dict[str, float]]:
    """Yield a line for each autocorrelation, number of rounds and spread; the shares are fractions."""
    generator = np.random.default_rng(0)
    for correlation in CORRELATIONS:
        for rounds in ROUNDS:
            measured = [measure_process(correlation, rounds, generator) for _ in range(trials * PROCESSES)]
            for spread in SPREADS:
                own = [moved(interval, generator.normal(0, spread)) for interval in measured]
                ratios = np.reshape([found.ratio for found in own], (trials, PROCESSES))
                yield {
                    "autocorrelation": correlation,
                    "rounds": rounds,
                    "spread": spread,
                    "over_processes": share([over_processes(each) for each in ratios.tolist()]),
                    "within_process": share(own),
                }


def moved(interval: Interval, by: float) -> Interval:
    """Return the interval that a process finds whose own ratio differs by exp(``by``)."""
    return Interval(*(end * math.exp(by) for end in interval))


def share(intervals: Sequence[Interval]) -> float:
    """Return the share of the intervals that contain the true ratio."""
    return float(np.mean([interval.low <= TRUE <= interval.high for interval in intervals]))


def markdown(lines: Sequence[Mapping[str, float]]) -> str:
    """Return the lines of a simulation as a Markdown table."""
    rows = [
        {
            "autocorrelation of rounds": f"{line['autocorrelation']:g}",
            "rounds per process": f"{line['rounds']}",
            "spread of processes": f"{line['spread']:.0%}".replace("%", " %"),
            "interval over six processes": f"{100 * line['over_processes']:.1f} %",
            "interval of one process": f"{100 * line['within_process']:.1f} %",
        }
        for line in lines
    ]
    return markup.markdown(pd.DataFrame(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000, help="number of simulated timings per line (2000)")
    add_option(parser, None)
    arguments = parser.parse_args()
    check = Check("timing_coverage", arguments.results)
    lines = list(simulate(arguments.trials))
    print(markdown(lines))
    check.write({"trials": arguments.trials, "lines": lines})


if __name__ == "__main__":
    run(main)
