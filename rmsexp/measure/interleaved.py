"""Timing by turns: what is compared runs in one process, in blocks whose order is drawn anew in every round.

Runs one after the other on a shared machine differ by more than what a norm costs. Within a round all meet the same
conditions on the same batches, so the ratio of two blocks of a round is what can be trusted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NamedTuple, Protocol

import torch

from rmsexp.train.clock import Stopwatch
from rmsexp.train.contention import Contention
from rmsexp.train.randomness import permutation
from rmsexp.train.step import WARMUP_STEPS, Batches, Part, synchronise

BLOCK_SECONDS = 0.1  # at least, so that the clock and the change of turns weigh little


class Contestant(Protocol):
    """What is timed."""

    def take(self, step: int, batches: Batches, part: Part = nullcontext) -> object:
        """One step; ``part`` is entered with the name of each of its parts around that part."""


class Round(NamedTuple):
    """``seconds``: of a step, for each contestant. ``data``: seconds that it took to have the batches of a step."""

    seconds: list[float]
    data: float


class Interleaved:
    """Contestants on one device that take turns on the batches of the same steps, from step 0 on."""

    def __init__(
        self, contestants: Sequence[Contestant], batches: Callable[[int], Batches], device: torch.device, seed: int
    ) -> None:
        self.contestants, self.device, self.seed = contestants, device, seed
        self.contention = Contention(device)
        self._batches, self._step = batches, 0
        self.steps_per_block = 1

    def warm_up(self) -> None:
        """Some steps of each that do not count; they tell how many steps make a block."""
        slowest = 0.0
        batches = [self._batches(step) for step in range(WARMUP_STEPS)]
        for contestant in self.contestants:
            seconds = math.inf
            for step, some in enumerate(batches):
                seconds = min(seconds, self._timed(contestant, step, [some]))
            slowest = max(slowest, seconds)
        self.steps_per_block = max(1, math.ceil(BLOCK_SECONDS / slowest))
        self._step = WARMUP_STEPS

    def rounds(self) -> Iterator[Round]:
        """Without end: a block of each contestant, in random order."""
        number = 0
        while True:
            first, batches, data = self._next_batches()
            seconds = [0.0] * len(self.contestants)
            for index in permutation(len(seconds), self.seed, "round", number).tolist():
                with self.contention.watch():
                    seconds[index] = self._timed(self.contestants[index], first, batches) / len(batches)
            yield Round(seconds, data)
            number += 1

    def parts(self, blocks: int) -> list[dict[str, float]]:
        """Median seconds of each part of a step, for each contestant; the device is waited for around each part."""
        found: list[dict[str, list[float]]] = [defaultdict(list) for _ in self.contestants]
        for number in range(blocks):
            first, batches, _ = self._next_batches()
            for index in permutation(len(found), self.seed, "parts", number).tolist():
                seconds: dict[str, float] = defaultdict(float)
                for step, some in enumerate(batches, first):
                    self.contestants[index].take(step, some, partial(self._part, seconds))
                for name, total in seconds.items():
                    found[index][name].append(total / len(batches))
        return [{name: sorted(of)[len(of) // 2] for name, of in one.items()} for one in found]

    def peak_bytes(self) -> list[int | None]:
        """The most that a step of each has allocated at one time beyond what it started with; None if unreadable."""
        first, batches, _ = self._next_batches()
        return [_peak(partial(one.take, first, batches[0]), self.device) for one in self.contestants]

    def _next_batches(self) -> tuple[int, list[Batches], float]:
        """The first step of a block, its batches, and the seconds a step that these took."""
        first, watch = self._step, Stopwatch()
        self._step += self.steps_per_block
        batches = [self._batches(step) for step in range(first, self._step)]
        synchronise(self.device)
        return first, batches, watch.seconds / len(batches)

    def _timed(self, contestant: Contestant, first: int, batches: Sequence[Batches]) -> float:
        synchronise(self.device)
        watch = Stopwatch()
        for step, some in enumerate(batches, first):
            contestant.take(step, some)
        synchronise(self.device)
        return watch.seconds

    @contextmanager
    def _part(self, seconds: dict[str, float], name: str) -> Iterator[None]:
        synchronise(self.device)
        watch = Stopwatch()
        yield
        synchronise(self.device)
        seconds[name] += watch.seconds


def _peak(take: Callable[[], object], device: torch.device) -> int | None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        take()
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        take()
    result = profile.profiler.kineto_results if profile.profiler is not None else None
    if result is None:
        return None
    held = peak = 0
    for event in sorted((one for one in result.events() if one.name() == "[memory]"), key=lambda one: one.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
