"""The processes of a run as threads of this one, without torch.distributed.

Only one thread computes at a time, because threads share torch's default generator and the casts of autocast.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Queue
from typing import Any, TypeVar

import torch
from torch import Tensor

from rmsexp.train.group import Group
from rmsexp.train.interrupt import Interrupt

T = TypeVar("T")
LIMIT_SECONDS = 60  # a thread that waits longer fails


class Shared:
    """What the threads share. ``computing``: the lock of the one that computes."""

    def __init__(self, size: int) -> None:
        self.computing, self.meeting = threading.Lock(), threading.Barrier(size)
        self.values: list[Any] = [None] * size
        self.queues: list[list[Queue[Tensor]]] = [[Queue() for _ in range(size)] for _ in range(size)]

    @contextmanager
    def others_compute(self) -> Iterator[None]:
        self.computing.release()
        try:
            yield
        finally:
            self.computing.acquire()


class ThreadGroup(Group):
    """One of ``size`` threads, with the methods that steps need."""

    device = torch.device("cpu")

    def __init__(self, rank: int, shared: Shared) -> None:
        self.rank, self.size = rank, len(shared.values)
        self.chosen, self.interrupt, self._shared = slice(rank, None, self.size), Interrupt(), shared

    def gather(self, value: Any) -> list[Any]:
        self._shared.values[self.rank] = value
        self._meet()
        gathered = list(self._shared.values)
        self._meet()
        return gathered

    def _meet(self) -> None:
        with self._shared.others_compute():
            self._shared.meeting.wait(LIMIT_SECONDS)

    def share(self, value: Any) -> Any:
        return pickle.loads(self.gather(pickle.dumps(value))[0])  # a copy, as from torch.distributed

    def send(self, tensor: Tensor, rank: int) -> None:
        self._shared.queues[self.rank][rank].put(tensor.clone())

    def receive(self, tensor: Tensor, rank: int) -> None:
        with self._shared.others_compute():
            received = self._shared.queues[rank][self.rank].get(timeout=LIMIT_SECONDS)
        tensor.copy_(received)

    def broadcast(self, tensor: Tensor, rank: int) -> None:
        tensor.copy_(self.gather(tensor.clone())[rank])

    def sum(self, tensor: Tensor) -> None:
        tensor.copy_(torch.stack(self.gather(tensor.clone())).sum(0))


def in_threads(size: int, work: Callable[[Any], T]) -> list[T]:
    """Return ``work(group)`` of each of ``size`` threads, by rank. Raises the first error of a thread."""
    shared, errors = Shared(size), list[BaseException]()

    def begin(rank: int) -> T:
        torch.set_num_threads(1)  # each thread has a number of its own
        with shared.computing:
            try:
                return work(ThreadGroup(rank, shared))
            except BaseException as error:
                errors.append(error)
                shared.meeting.abort()  # which is an error in threads that wait
                raise

    with ThreadPoolExecutor(size) as pool:
        results = [pool.submit(begin, rank) for rank in range(size)]
    if errors:
        raise errors[0]
    return [result.result() for result in results]
