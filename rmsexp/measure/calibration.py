"""Measure how long a probe takes on this machine while it is quiet, and store that as the machine's baseline speed.

Times of probes differ between processes even on a quiet machine, as a process keeps the memory pages it got. So this
is the median over several fresh processes, which train a small model between the probes, as timings do.
"""

import itertools
from typing import Any

import torch

from rmsexp import config
from rmsexp.measure import new_process, probes, steps
from rmsexp.measure.probes import WORK, Times, medians
from rmsexp.records.record import FEWEST_PROBES, SLOWDOWN_LIMITS
from rmsexp.system import clock
from rmsexp.system.machine_lock import Report, measuring
from rmsexp.train.contention import Contention
from rmsexp.train.device import set_up_device
from rmsexp.train.provenance import machine_id

PROCESSES, PROBES = 5, 4 * FEWEST_PROBES  # fresh processes, and probes of each
WARMUP_SECONDS, BLOCK_SECONDS = 1.0, 0.03  # of training steps before the first probe, and between two probes
# One thread, as in the timings of the records. With more threads, idle ones may disturb the probe.
WORDS = ("task=order_embedding", "scale=demo", "threads=1", "device=cpu")


def quiet_probes(report: Report) -> dict[str, Any]:  # noqa: ARG001
    """Set this process up like a timing and take probes; return ``seconds``, the median time of each part of a probe.

    Raises: ValueError unless the machine was undisturbed meanwhile.
    """
    job = config.job(list(WORDS))
    stepper = steps.make_stepper(job, set_up_device(job.config))
    numbers = itertools.count()

    def train(seconds: float) -> None:
        watch = clock.Stopwatch()
        while watch.seconds < seconds:
            step = next(numbers)
            stepper.take(step, stepper.task.batches(step))

    train(WARMUP_SECONDS)
    contention, taken = Contention(torch.device("cpu")), list[Times]()
    for _ in range(PROBES):
        with contention.watch():
            train(BLOCK_SECONDS)
        taken.append(probes.probe().take())
    found = contention.report()
    if found["state"] != "undisturbed":
        evidence = f"{found['state']}: threads waited {found['waited']}, the host took {found['steal']} of the time"
        raise ValueError(f"the machine was not quiet ({evidence}); repeat the command when nothing else runs")
    return {"seconds": medians(taken)}


def calibrate(report: Report) -> list[str]:
    """Measure the baseline speed, replace the stored one, and return lines about it. Campaign workers pause meanwhile.

    Raises: ProcessError or ValueError if the machine was not quiet, OSError if the file cannot be written; then nothing
    is stored.
    """
    with measuring(report):
        report(f"measuring the quiet machine in {PROCESSES} processes; takes about a minute")
        names = [f"process {number} of {PROCESSES}" for number in range(1, PROCESSES + 1)]
        found = [Times(*new_process.in_new_process(name, quiet_probes, (), report)["seconds"]) for name in names]
    times, lines = medians(found), list[str]()
    for part, median, seconds in zip(Times._fields, times, zip(*found, strict=True), strict=True):
        spread = f"{min(seconds) / median:.2f} to {max(seconds) / median:.2f} times the median"
        if max(seconds) > SLOWDOWN_LIMITS[part] * median:  # something outside of this machine was busy
            raise ValueError(f"the machine was not quiet: in {PROCESSES} processes, {part} took {spread}; try again")
        lines.append(f"{part:11} {1e3 * median:.3f} ms; {PROCESSES} processes {spread}")
    path = probes.write(probes.Reference(machine_id(), WORK, clock.now(), PROCESSES, PROCESSES * PROBES, *times))
    return [*lines, f"reference   {path}"]
