"""Compute a result in parts, several at a time, and store each, so that a kill loses only the parts in progress."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import TypeVar

from rmsexp.data import DataError, Report
from rmsexp.data.cache import cached
from rmsexp.system import cores, process

T = TypeVar("T")

MOST = 8  # processes: with up to 150 MB each, they and the process that starts them stay below 2 GiB


def parts_folder(result: Path) -> Path:
    """Return the folder for the parts of a result that is stored in the folder ``result``, or will be."""
    return result.with_name(f".{result.name}.parts")


def stored(
    folder: Path, make: Callable[[T, Path], None], inputs: Iterable[T], processes: int, report: Report
) -> Iterator[Path]:
    """Yield a folder for each input, in their order, in which ``make(input, folder)`` has stored its files.

    They are below ``folder``, with digests: those that an earlier process stored are not computed again. With several
    processes, ``make`` and the inputs must be picklable; a few inputs are taken ahead.

    Raises: DataError if a process is killed, and whatever ``make`` raises.
    """
    arguments = ((folder / f"{number:06}", make, item) for number, item in enumerate(inputs))
    done = starmap(_store, arguments) if processes == 1 else _in_processes(arguments, processes)
    for path, messages in done:
        for message in messages:
            report(message)
        yield path


def processes(parts: int) -> int:
    """Return how many processes should compute so many parts. Under torchrun one process of a host prepares data."""
    return max(1, min(parts, cores.threads_while_others_wait(), MOST))


def _store(path: Path, make: Callable[[T, Path], None], item: T) -> tuple[Path, list[str]]:
    messages: list[str] = []
    return cached(path, Path, partial(make, item), messages.append), messages


def _in_processes(arguments: Iterable[tuple], processes: int) -> Iterator[tuple[Path, list[str]]]:
    # Unlike those of the standard library, loky's processes do not import the user's script, which may have no guard,
    # and do not inherit open files, whose locks they would hold.
    from joblib.externals.loky import ProcessPoolExecutor

    pool, pending = ProcessPoolExecutor(processes, initializer=process.follow_parent), deque[Future]()
    try:
        for item in arguments:
            pending.append(pool.submit(_store, *item))
            if len(pending) > processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenExecutor:
        raise DataError(
            "A process that prepares data was killed; the machine may have too little memory.\n"
            "Start the command again: it goes on after the parts that are stored."
        ) from None
    finally:
        pool.shutdown(kill_workers=True)
