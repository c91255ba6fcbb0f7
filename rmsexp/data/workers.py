"""Compute parts of a result in several processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future
from itertools import chain, islice
from typing import TypeVar

from rmsexp.data import DataError
from rmsexp.system import cores, process

T = TypeVar("T")
R = TypeVar("R")

MOST = 4  # processes; with Moses' truecaser of WMT14 each has up to 600 MB


def in_processes(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield ``function(item)`` for each item, in their order; a few items are taken ahead.

    A single item is computed in this process. Under torchrun one process of a machine prepares data, with the cores of
    all.

    Raises: DataError if a process is killed; whatever ``function`` raises.
    """
    # Unlike those of the standard library, loky's processes do not import the user's script, which may have no guard,
    # and do not inherit open files, whose locks they would hold.
    from joblib.externals.loky import ProcessPoolExecutor

    remaining = iter(items)
    first = list(islice(remaining, 2))
    processes = min(cores.threads_while_others_wait(), MOST)
    if len(first) < 2 or processes < 2:
        yield from map(function, chain(first, remaining))
        return
    pool, pending = ProcessPoolExecutor(processes, initializer=process.follow_parent), deque[Future[R]]()
    try:
        for item in chain(first, remaining):
            pending.append(pool.submit(function, item))
            if len(pending) > processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenExecutor:
        raise DataError(
            "A process that prepares data was killed.\nThe machine may have too little memory; start the command again."
        ) from None
    finally:
        pool.shutdown(kill_workers=True)
