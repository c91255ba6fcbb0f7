"""Measure how long a probe takes on this machine while it is quiet, and store that as the machine's quiet reference.

Probes of two processes differ even on a quiet machine, as a process keeps its memory where it got it. So the reference
is the median over several fresh processes, which train a small model between the probes, as measured runs do.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rmsexp import config
from rmsexp.measure import new_process, steps
from rmsexp.records.record import FEWEST_PROBES, SLOWDOWN_LIMITS, STEAL_LIMIT, WAITED_LIMIT
from rmsexp.system import clock
from rmsexp.system.machine_lock import Report, measuring
from rmsexp.train import quiet
from rmsexp.train.contention import Contention
from rmsexp.train.device import set_up_device
from rmsexp.train.probe import WORK, Times, probe

PROCESSES, BATCHES = 5, 4  # fresh processes, and batches of probes in each of them
WARMUP_SECONDS, BLOCK_SECONDS = 1.0, 0.03  # of training steps before the first probe, and between two probes
OTHERS_LIMIT = 0.1  # cores that other processes may use meanwhile
# One thread, as in the timings of the records. With more threads, idle ones may disturb the probe.
WORDS = ("task=order_embedding", "scale=demo", "threads=1", "device=cpu")


def quiet_batches(report: Report) -> dict[str, Any]:  # noqa: ARG001
    """Set this process up like a measured run; return its ``batches``: the median seconds of the probes of each.

    Raises: ValueError if something else was busy meanwhile.
    """
    job = config.job(list(WORDS))
    stepper = steps.make_stepper(job, set_up_device(job.config), lambda _: None)
    numbers = itertools.count()

    def train(seconds: float) -> None:
        watch = clock.Stopwatch()
        while watch.seconds < seconds:
            step = next(numbers)
            stepper.take(step, stepper.task.batches(step))

    train(WARMUP_SECONDS)
    return {"batches": _batches(partial(train, BLOCK_SECONDS))}


def _batches(train: Callable[[], None]) -> list[Times]:
    """Return the median seconds of each batch of probes. ``train``: takes training steps, before each probe.

    Raises: ValueError if something else was busy meanwhile.
    """
    contention, taken = Contention(torch.device("cpu")), list[Times]()
    watch, before = clock.Stopwatch(), _seconds_of_others()
    for _ in range(BATCHES * FEWEST_PROBES):
        with contention.watch():
            train()
        taken.append(probe().take())
    others = (_seconds_of_others() - before) / watch.seconds
    waited, steal = (contention.report()[key] for key in ("waited", "steal"))
    if waited is None:
        raise ValueError("the kernel does not report how long threads wait, so nothing was stored")
    if others > OTHERS_LIMIT or waited > WAITED_LIMIT or steal > STEAL_LIMIT:
        raise ValueError(
            f"the machine was not quiet: other processes used {others:.2f} cores (at most {OTHERS_LIMIT}), threads "
            f"waited for a core for {waited:.1%} of their CPU time (at most {WAITED_LIMIT:.1%}), the host took "
            f"{steal:.1%} of the machine's time (at most {STEAL_LIMIT:.0%}); nothing was stored\n"
            "repeat the command when nothing else runs"
        )
    return [_medians(taken[first : first + FEWEST_PROBES]) for first in range(0, len(taken), FEWEST_PROBES)]


def _seconds_of_others() -> float:
    """Return the seconds that all cores together have worked since boot, other than for this process.

    Raises: OSError without /proc/stat.
    """
    user, nice, system, _, _, *interrupts = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    own = os.times()
    return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK") - own.user - own.system


def calibrate(report: Report, work: Callable[[Report], dict[str, Any]] = quiet_batches) -> list[str]:
    """Measure the quiet reference, replace the stored one, and return lines about it. Campaign workers pause meanwhile.

    ``work``: what a process does; it must be importable there.

    Raises: ProcessError or ValueError if the machine was not quiet, OSError if the file cannot be written; then nothing
    is stored.
    """
    with measuring(report):
        report(f"measuring the quiet machine in {PROCESSES} processes; takes about a minute")
        names = [f"process {number} of {PROCESSES}" for number in range(1, PROCESSES + 1)]
        answers = [new_process.in_new_process(name, work, (), report) for name in names]
    found = [[Times(*batch) for batch in answer["batches"]] for answer in answers]
    _check_quiet([batch for batches in found for batch in batches])
    medians = [_medians(batches) for batches in found]
    before, times = quiet.read(), _medians(medians)
    lines = []
    for part, median, seconds in zip(Times._fields, times, zip(*medians, strict=True), strict=True):
        spread = f"{PROCESSES} processes {min(seconds) / median:.2f} to {max(seconds) / median:.2f} times that"
        lines.append(f"{part:11} {1e3 * median:.3f} ms; {spread}")
        if before is not None:
            lines[-1] += f"; {median / getattr(before, part):.2f} times the reference of {before.date[:10]}"
    number = PROCESSES * BATCHES * FEWEST_PROBES
    path = quiet.write(quiet.Reference(quiet.machine_id(), WORK, clock.now(), PROCESSES, number, *times))
    return [*lines, f"reference   {path}"]


def _check_quiet(batches: list[Times]) -> None:
    """Raises: ValueError if a quarter of the batches were slow: then something outside of this machine was busy."""
    for part, limit in SLOWDOWN_LIMITS.items():
        values = [getattr(batch, part) for batch in batches]
        slow = statistics.quantiles(values, n=4)[2] / statistics.median(values)
        if slow > limit:
            raise ValueError(
                f"the machine was not quiet: a quarter of the time, {part} took {slow:.2f} times its median or longer; "
                "nothing was stored\nrepeat the command; another virtual machine on the same host may have been busy"
            )


def _medians(times: list[Times]) -> Times:
    return Times(*map(statistics.median, zip(*times, strict=True)))
