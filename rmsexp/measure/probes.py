"""Probes of a timing: fixed work between its rounds, whose time shows slowdowns of the machine that no counter shows.

A probe divides numbers that fit into the first-level cache, and then reads memory that does not fit into a cache of up
to 128 MiB; a larger cache may hold a part of it. NumPy does both on the calling thread. Together they take about three
milliseconds.

The *baseline speed* is how long a probe takes on this machine while nothing else slows it down. There is one file for
each machine in the user's cache folder; ``python -m rmsexp.timing --calibrate`` writes it.
"""

import statistics
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch

from rmsexp.records.record import FEWEST_PROBES
from rmsexp.system import atomic, machine
from rmsexp.system.clock import Stopwatch
from rmsexp.system.command_line import brief, inform
from rmsexp.system.files import cache_folder
from rmsexp.system.readers import Between, Count, read_typed
from rmsexp.train.contention import Contention
from rmsexp.train.provenance import machine_id

DIVISIONS, NUMBERS = 800, 2048  # times that each of the numbers is divided; 2048 float64 are 16 KiB
SWEPT = 64 << 20  # bytes that a probe reads
# The buffer is twice the largest cache, because a cache may keep a part of a buffer that is a little larger. Of a
# larger buffer, each probe reads the next part. Every process has a buffer, so its size has a limit.
LARGEST_BUFFER = 4 * SWEPT
WORK = f"{DIVISIONS} x {NUMBERS} divisions, {SWEPT >> 20} MiB, numpy {np.__version__}"  # what the times depend on
# A probe is a spike if it takes more than SPIKE times the median of up to RECENT probes before it (at least FEWEST).
SPIKE, RECENT, FEWEST = 2.0, 50, 5
FOLDER, FILE = Path("~/.cache/rmsexp/machines"), "quiet.json"
Seconds = Annotated[float, Between(1e-9, 1e9)]


class Times(NamedTuple):
    """Seconds of the two parts of a probe."""

    arithmetic: float
    memory: float


class Probe:
    """Takes probes, in memory of its own; :func:`probe` makes one per process."""

    def __init__(self) -> None:
        parts = -(-2 * (machine.largest_cache() or 0) // SWEPT)
        size = min(max(1, parts) * SWEPT, LARGEST_BUFFER)
        # written with ones: the kernel maps pages that were never written to one page, which the cache holds
        self._buffer = np.ones(size // 8).reshape(-1, SWEPT // 8)
        self._numbers = np.full(NUMBERS, 1.25)
        self._next = 0

    def take(self) -> Times:
        """Do the work once, and return the seconds of its two parts."""
        watch = Stopwatch()
        for _ in range(DIVISIONS):
            np.divide(1.0, self._numbers, out=self._numbers)
        arithmetic = watch.seconds
        self._buffer[self._next].max()
        self._next = (self._next + 1) % len(self._buffer)
        return Times(arithmetic, watch.seconds - arithmetic)


probe = cache(Probe)


def medians(times: list[Times]) -> Times:
    return Times(*map(statistics.median, zip(*times, strict=True)))


@dataclass(frozen=True)
class Reference:
    """The median seconds of a probe's two parts on the machine with the id ``machine``, measured while it was quiet.

    ``work``: the ``WORK`` of a probe. ``number``: the number of probes in all ``processes`` fresh processes together.
    """

    machine: str
    work: str
    date: str
    processes: Count
    number: Count
    arithmetic: Seconds
    memory: Seconds


def path_of(identity: str) -> Path:
    """Return the path of the file with the baseline speed of the machine with the id ``identity``; make its folder."""
    return cache_folder(FOLDER, identity) / FILE


def read() -> Reference | None:
    """Return this machine's baseline speed for this probe; None if its file is missing.

    It is also None if the file cannot be used; a line on standard error then says why.
    """
    try:
        path = path_of(machine_id())
        if not path.exists():
            return None
        reference = read_typed(path, Reference)
        if (reference.machine, reference.work) != (machine_id(), WORK):
            raise ValueError(f"{path} is of another machine or of an older probe")
        return reference
    except (OSError, ValueError) as error:
        advice = "renew it with python -m rmsexp.timing --calibrate"
        inform(brief(f"notice: the machine's baseline speed is not used ({error}); {advice}"))
        return None


def write(reference: Reference) -> Path:
    """Replace the reference of this machine; return the path of its file. Raises: OSError."""
    path = path_of(reference.machine)
    atomic.write_json(path, asdict(reference))
    return path


class ProbedContention(Contention):
    """The contention of a timing: besides waiting and steal, the probes that were taken between its rounds.

    On a GPU there are none: they would say nothing about its steps.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._taken, self._spikes = list[Times](), 0

    def probe(self) -> bool:
        """Take a probe, and return whether it is a spike: something else ran at this moment.

        Call it between pieces of work, not after the process has slept, because a core that wakes up is slow at first.
        """
        if self.on_gpu:
            return False
        recent = [sum(times) for times in self._taken[-RECENT:]]
        self._taken.append(probe().take())
        spike = len(recent) >= FEWEST and sum(self._taken[-1]) > SPIKE * statistics.median(recent)
        self._spikes += spike
        return spike

    def probe_at_an_edge(self) -> None:
        """Take probes before or after the work: each time half of ``FEWEST_PROBES``, the number that a state needs.

        One more, before them, does not count, because a core that wakes up is slow at first.
        """
        if not self.on_gpu:
            probe().take()
        for _ in range(FEWEST_PROBES // 2):
            self.probe()

    def report(self) -> dict[str, Any]:
        """Return the report of :class:`Contention` with the key ``probes``, which is None if no probe was taken.

        ``probes``: ``number``, ``spikes``, ``median`` (seconds by part), and ``reference``, that of the quiet machine
        or None. What they say of the state is judged from records (:mod:`rmsexp.records.frames.time_states`).
        """
        if not self._taken:
            return super().report() | {"probes": None}
        reference, median = read(), medians(self._taken)._asdict()
        return super().report() | {
            "probes": {
                "number": len(self._taken),
                "spikes": self._spikes,
                "median": {part: round(seconds, 7) for part, seconds in median.items()},
                "reference": reference and asdict(reference),
            }
        }
