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
PATIENCE = 40.0  # seconds that a process waits for quiet batches
WARMUP_SECONDS, BLOCK_SECONDS = 1.0, 0.03  # of training steps before the first probe, and between two probes
OTHERS_LIMIT = 0.1  # cores that other processes may use meanwhile
# One thread, as in the timings of the records. With more threads, idle ones may disturb the probe.
WORDS = ("task=order_embedding", "scale=demo", "threads=1", "device=cpu")


def quiet_batches(report: Report) -> dict[str, Any]:  # noqa: ARG001
    """Set this process up like a measured run; return its ``batches``, as :func:`_batches` does.

    Raises: ValueError as :func:`_batches`.
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
    lines = [_line(part, [getattr(each, part) for each in medians], before) for part in Times._fields]
    path = quiet.write(
        quiet.Reference(quiet.machine_id(), WORK, clock.now(), PROCESSES, PROCESSES * BATCHES * FEWEST_PROBES, *times)
    )
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


def _batches(train: Callable[[], None]) -> list[Times]:
    """Return the median seconds of ``BATCHES`` batches of ``FEWEST_PROBES`` probes during which the machine was quiet.

    ``train``: takes training steps, before each probe.

    Raises: ValueError if there were not as many within ``PATIENCE`` seconds.
    """
    batches, watch, problem = list[Times](), clock.Stopwatch(), ""
    while len(batches) < BATCHES:
        if watch.seconds > PATIENCE:
            raise ValueError(
                f"the machine was not quiet: {problem}; nothing was stored\nrepeat the command when nothing else runs"
            )
        batch, disturbance = _batch(train)
        problem = disturbance or problem
        if not disturbance:
            batches.append(batch)
    return batches


def _batch(train: Callable[[], None]) -> tuple[Times, str]:
    """Return the median seconds of a batch of probes, and what else was busy meanwhile, or ""."""
    contention, taken = Contention(torch.device("cpu")), list[Times]()
    watch, own, busy = clock.Stopwatch(), _own_seconds(), _busy_seconds()
    for _ in range(FEWEST_PROBES):
        with contention.watch():
            train()
        taken.append(probe().take())
    others = (_busy_seconds() - busy - (_own_seconds() - own)) / watch.seconds
    waited, steal = (contention.report()[key] for key in ("waited", "steal"))
    disturbance = ""
    if waited is None:
        disturbance = "the kernel does not report how long threads wait"
    elif others > OTHERS_LIMIT:
        disturbance = f"other processes used {others:.2f} cores (at most {OTHERS_LIMIT})"
    elif waited > WAITED_LIMIT:
        disturbance = f"threads waited for a core for {waited:.1%} of their CPU time (at most {WAITED_LIMIT:.1%})"
    elif steal > STEAL_LIMIT:
        disturbance = f"the host took {steal:.1%} of the machine's time (at most {STEAL_LIMIT:.0%})"
    return _medians(taken), disturbance


def _medians(times: list[Times]) -> Times:
    return Times(*map(statistics.median, zip(*times, strict=True)))


def _line(part: str, seconds: list[float], before: quiet.Reference | None) -> str:
    median = statistics.median(seconds)
    spread = f"{PROCESSES} processes {min(seconds) / median:.2f} to {max(seconds) / median:.2f} times that"
    earlier = (
        "" if before is None else f"; {median / getattr(before, part):.2f} times the reference of {before.date[:10]}"
    )
    return f"{part:11} {1e3 * median:.3f} ms; {spread}{earlier}"


def _own_seconds() -> float:
    """Return the seconds of CPU time that this process has used."""
    times = os.times()
    return times.user + times.system


def _busy_seconds() -> float:
    """Return the seconds that all cores together have worked since boot. Raises: OSError without /proc/stat."""
    user, nice, system, _, _, *interrupts = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")
