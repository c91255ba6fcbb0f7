"""Can the timing be believed? It is asked about a norm beside itself, and about one that was made slower on purpose.

In each trial RMSNorm is timed against RMSNorm with newly made models, until the interval is as narrow as wanted or the
budget is spent. In the "same" trials the interval should hold 1 in 95 of 100; in the "slower" ones, where the second
spins for a share of each of its steps, it should not.

    python scripts/timing_power.py --same 100 --slower 20 --share 0.05 task=order_embedding threads=1
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from rmsexp import timing
from rmsexp.train.device import set_up_device


class Slowed:
    """Takes the steps of another and spins for a share of their time."""

    def __init__(self, stepper: Any, share: float) -> None:
        self._stepper, self._share = stepper, share

    def take(self, step: int, batches: Any, **part: Callable[..., Any]) -> None:
        start = time.perf_counter()
        self._stepper.take(step, batches, **part)
        end = time.perf_counter() + self._share * (time.perf_counter() - start)
        while time.perf_counter() < end:
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--same", type=int, default=100, help="trials of a norm beside itself")
    parser.add_argument("--slower", type=int, default=20, help="trials with a planted slowdown")
    parser.add_argument("--share", type=float, default=0.05, help="of a step's time, the slowdown")
    parser.add_argument("--target-width", type=float, default=0.03)
    parser.add_argument("--budget", type=float, default=10, help="seconds of a trial")
    parser.add_argument("overrides", nargs="*", help="as on the command line of rmsexp")
    arguments = parser.parse_args()
    own = [f"timing.target_width={arguments.target_width}", f"timing.budget={arguments.budget}"]
    options, (series,) = timing.parse(["norms=[rms]", "timing.reference=rms", *own, *arguments.overrides])
    device = set_up_device(series.job.config)
    trials: list[dict[str, Any]] = []
    for kind in ["same"] * arguments.same + ["slower"] * arguments.slower:
        turns, _, _ = timing.contestants(options, [series, series._replace(name="other")], device)
        turns.seed = len(trials)
        if kind == "slower":
            turns.contestants = [turns.contestants[0], Slowed(turns.contestants[1], arguments.share)]
        turns.warm_up()
        measured = timing.take_turns(options, turns, ["rms", "other"])
        ratio = measured.ratios["other"]
        trials.append({"kind": kind, **ratio._asdict(), "rounds": len(measured.rounds), "stopped": measured.stopped})
        print(json.dumps(trials[-1]), flush=True)
    same, slower = ([one for one in trials if one["kind"] == kind] for kind in ("same", "slower"))
    print(f"target_width {arguments.target_width:g}, budget {arguments.budget:g} s, {' '.join(arguments.overrides)}")
    for some, what, holds in ((same, "hold 1", True), (slower, "exclude 1", False)):
        right = sum((one["low"] <= 1 <= one["high"]) == holds for one in some)
        widths = sorted(one["high"] - one["low"] for one in some)
        if widths:
            of_widths = f"{widths[0]:.4f}, median {widths[len(widths) // 2]:.4f}, {widths[-1]:.4f}"
            print(f"{right} of {len(some)} intervals {what}; widths {of_widths}")


if __name__ == "__main__":
    main()
