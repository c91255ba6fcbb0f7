"""Interleaved timing: contestants in one process take blocks of the same steps, in another order in every round.

Times of separate runs on a shared machine differ by more than what a norm costs. Within a round all contestants meet
almost the same conditions and the same batches, so the ratio of two times of one round varies little. The first step of
a block does not count, because it begins with what another contestant has left in the caches.
"""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch

from rmsexp.measure.probes import ProbedContention
from rmsexp.system.clock import Stopwatch
from rmsexp.task import MicroBatches
from rmsexp.train.randomness import permutation
from rmsexp.train.step import WARMUP_STEPS, synchronise

# least duration of the counted steps of a block of the slowest contestant, so that reading the clock hardly adds to it
BLOCK_SECONDS = 0.1
FEWEST_STEPS = 3  # least number of counted steps of a block
# A function that computes a step of a model in training, or of layers alone. Its arguments: the step, the batches and,
# for a step of several parts, a function ``part``: each of them runs in the context ``part(name)``.
Contestant = Callable[..., object]


class Budget(NamedTuple):
    """A number of seconds that may be spent while ``watch`` runs."""

    watch: Stopwatch
    seconds: float

    @property
    def left(self) -> float:
        return self.seconds - self.watch.seconds


def balanced(n: int, place: int, seed: int, *name: str | int) -> list[int]:
    """Return a permutation of 0 to ``n`` - 1: order number ``place``, from 0, in the sequence of this seed and name.

    Each ``n`` successive orders, from a multiple of ``n`` on, are the rows of a Latin square: every contestant is once
    at every position. If ``n`` is even, it also comes once directly after every other contestant; if ``n`` is odd,
    twice in the squares 2 k and 2 k + 1 together. Rows and contestants are shuffled.

    Source: E. J. Williams, Experimental designs balanced for the estimation of residual effects of treatments (1949).
    """
    square, row = divmod(place, n)
    is_odd = n % 2
    labels = permutation(n, seed, *name, "labels", square // 2 if is_odd else square).tolist()
    shift = int(permutation(n, seed, *name, "rows", square)[row])
    zigzag = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(n)]  # 0, 1, -1, 2, -2, …
    order = [labels[(position + shift) % n] for position in zigzag]
    return order[::-1] if is_odd and square % 2 else order


class Round(NamedTuple):
    """The times of a round: seconds per step of each contestant, and seconds per step for loading the batches."""

    seconds: list[float]
    data_seconds: float


class InterleavedTimer:
    """Times contestants on one device. All of them take the same steps, from step 0 on, with the same batches."""

    def __init__(
        self, contestants: Sequence[Contestant], batches: Callable[[int], MicroBatches], device: torch.device, seed: int
    ) -> None:
        self.contestants, self.device, self.seed = contestants, device, seed
        self.contention = ProbedContention(device)
        self._batches, self._next_step = batches, 0
        self.steps_per_block = FEWEST_STEPS

    def warm_up(self) -> None:
        """Take ``WARMUP_STEPS`` steps with each contestant, and set the timed steps per block by their times."""
        batches = [self._batches(step) for step in range(WARMUP_STEPS)]
        slowest = max(
            min(self._seconds(contestant, step, [batch]) for step, batch in enumerate(batches))
            for contestant in self.contestants
        )
        self.steps_per_block = max(FEWEST_STEPS, math.ceil(BLOCK_SECONDS / slowest))
        self._next_step = WARMUP_STEPS

    def rounds(self) -> Iterator[Round]:
        """Yield rounds without end: one block of each contestant, in balanced random orders.

        Before each round there is a probe of the machine. If it is a spike, the round's steps are left out.
        """
        for number in itertools.count():
            first, batches, data_seconds = self._next_block()
            while self.contention.probe():
                first, batches, data_seconds = self._next_block()
            seconds = [0.0] * len(self.contestants)
            for index in balanced(len(seconds), number, self.seed, "round"):
                with self.contention.watch():
                    self.contestants[index](first, batches[0])
                    seconds[index] = self._seconds(self.contestants[index], first + 1, batches[1:])
            yield Round(seconds, data_seconds)

    def parts(self, blocks: int) -> list[dict[str, float]]:
        """Return for each contestant the seconds per step of each part, by name: the median over ``blocks`` blocks.

        The device is synchronised before and after each part.
        """
        samples: list[dict[str, list[float]]] = [defaultdict(list) for _ in self.contestants]
        for number in range(blocks):
            first, batches, _ = self._next_block()
            for index in balanced(len(samples), number, self.seed, "parts"):
                totals: dict[str, float] = defaultdict(float)
                self.contestants[index](first, batches[0])
                for step, batch in enumerate(batches[1:], first + 1):
                    self.contestants[index](step, batch, partial(self._add_seconds, totals))
                for name, total in totals.items():
                    samples[index][name].append(total / self.steps_per_block)
        return [{name: statistics.median_high(values) for name, values in parts.items()} for parts in samples]

    def peak_bytes(self) -> list[int | None]:
        """Return each contestant's peak memory in one step, in bytes above what was allocated before it.

        The value is None if the profiler does not report memory.
        """
        first, batches, _ = self._next_block()
        return [_peak_bytes(partial(contestant, first, batches[0]), self.device) for contestant in self.contestants]

    def _next_block(self) -> tuple[int, list[MicroBatches], float]:
        """Return the next block: the number of its first step, its batches, and seconds per step for loading them."""
        first, watch = self._next_step, Stopwatch()
        self._next_step += 1 + self.steps_per_block
        batches = [self._batches(step) for step in range(first, self._next_step)]
        synchronise(self.device)
        return first, batches, watch.seconds / len(batches)

    def _seconds(self, contestant: Contestant, first: int, batches: Sequence[MicroBatches]) -> float:
        """Return the seconds per step of the steps from ``first`` on."""
        synchronise(self.device)
        watch = Stopwatch()
        for step, batch in enumerate(batches, first):
            contestant(step, batch)
        synchronise(self.device)
        return watch.seconds / len(batches)

    @contextmanager
    def _add_seconds(self, totals: dict[str, float], name: str) -> Iterator[None]:
        synchronise(self.device)
        watch = Stopwatch()
        yield
        synchronise(self.device)
        totals[name] += watch.seconds


def _peak_bytes(step: Callable[[], object], device: torch.device) -> int | None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    # torch.profiler.profile would do the same after importing the compiler, which takes seconds
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        step()
    result = profile.kineto_results
    if result is None:
        return None
    allocated = peak = 0
    events = [event for event in result.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak
