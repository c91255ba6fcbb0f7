"""Measure how long a probe takes on this machine while it is quiet, and store that as the machine's quiet reference."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import torch

from rmsexp.machine_lock import Report, measuring
from rmsexp.record import FEWEST_PROBES, SLOWDOWN_LIMITS, STEAL_LIMIT, WAITED_LIMIT
from rmsexp.train import clock, quiet
from rmsexp.train.contention import Contention
from rmsexp.train.probe import WORK, Times, probe

BATCHES, PATIENCE = 20, 120.0  # batches of probes that the reference is computed from; seconds to wait for them
BLOCK_SECONDS = 0.03  # of matrix products between two probes, which keep the core awake as the steps of a run do
OTHERS_LIMIT = 0.1  # cores that other processes may use meanwhile


def calibrate(report: Report) -> list[str]:
    """Measure the quiet reference, replace the stored one, and return lines about it. Campaign workers pause meanwhile.

    Raises: ValueError if the machine was not quiet, OSError if the file cannot be written; then nothing is stored.
    """
    with measuring(report):
        report(f"measuring the quiet machine; takes about {BATCHES * FEWEST_PROBES * BLOCK_SECONDS:.0f} s")
        batches = _batches()
    before, times = quiet.read(), Times(*map(statistics.median, zip(*batches, strict=True)))
    lines = [_line(part, [getattr(batch, part) for batch in batches], before) for part in Times._fields]
    path = quiet.write(quiet.Reference(quiet.machine_id(), WORK, clock.now(), BATCHES * FEWEST_PROBES, *times))
    return [*lines, f"reference   {path}"]


def _batches() -> list[Times]:
    """Return the median seconds of ``BATCHES`` batches of ``FEWEST_PROBES`` probes during which the machine was quiet.

    Raises: ValueError if there were not as many within ``PATIENCE`` seconds, or if a quarter of them were slow: then
    something outside of this machine was busy.
    """
    batches, watch, problem = list[Times](), clock.Stopwatch(), ""
    while len(batches) < BATCHES:
        if watch.seconds > PATIENCE:
            raise ValueError(
                f"the machine was not quiet: {problem}; nothing was stored\nrepeat the command when nothing else runs"
            )
        batch, disturbance = _batch()
        problem = disturbance or problem
        if not disturbance:
            batches.append(batch)
    for part, limit in SLOWDOWN_LIMITS.items():
        values = [getattr(batch, part) for batch in batches]
        slow = statistics.quantiles(values, n=4)[2] / statistics.median(values)
        if slow > limit:
            raise ValueError(
                f"the machine was not quiet: a quarter of the time, {part} took {slow:.2f} times its median or longer; "
                "nothing was stored\nrepeat the command; another virtual machine on the same host may have been busy"
            )
    return batches


def _batch() -> tuple[Times, str]:
    """Return the median seconds of a batch of probes, and what else was busy meanwhile, or ""."""
    contention, taken = Contention(torch.device("cpu")), list[Times]()
    watch, own, busy = clock.Stopwatch(), _own_seconds(), _busy_seconds()
    for _ in range(FEWEST_PROBES):
        with contention.watch():
            _work()
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
    return Times(*map(statistics.median, zip(*taken, strict=True))), disturbance


def _line(part: str, seconds: list[float], before: quiet.Reference | None) -> str:
    median = statistics.median(seconds)
    spread = f"batches of {FEWEST_PROBES} probes {min(seconds) / median:.2f} to {max(seconds) / median:.2f} times that"
    earlier = (
        "" if before is None else f"; {median / getattr(before, part):.2f} times the reference of {before.date[:10]}"
    )
    return f"{part:11} {1e3 * median:.3f} ms; {spread}{earlier}"


def _work() -> None:
    watch, matrix = clock.Stopwatch(), torch.ones(256, 256)
    while watch.seconds < BLOCK_SECONDS:
        torch.mm(matrix, matrix)


def _own_seconds() -> float:
    """Return the seconds of CPU time that this process has used."""
    times = os.times()
    return times.user + times.system


def _busy_seconds() -> float:
    """Return the seconds that all cores together have worked since boot. Raises: OSError without /proc/stat."""
    user, nice, system, _, _, *interrupts = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")
