"""Read parallel text pair by pair, so that a text of any size takes little memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path

from rmsexp.data import DataError
from rmsexp.data.files import not_utf8, unreadable

Pair = tuple[str, str]  # a source line and its target line, without line ends
Pairs = tuple[list[str], list[str]]  # source lines and as many target lines

SIDES = ("source", "target")


def read_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Yield the pairs of two UTF-8 files, plain or .gz, whose lines with the same number are a pair.

    Empty lines are included. Only "\\n" and "\\r\\n" end a line, because sentences may contain other line separators of
    Unicode. A byte order mark is dropped.

    Raises: DataError if a file is missing, damaged or not UTF-8, if the numbers of lines differ, or if there are none.
    """
    count = 0
    for count, (line, translation) in enumerate(zip_longest(_lines(source), _lines(target)), 1):
        if line is None or translation is None:
            shorter, longer = (source, target) if line is None else (target, source)
            raise DataError(
                f"{shorter} has {count - 1:,} lines and {longer} has more.\n"
                "Parallel text has a sentence and its translation on the same line of both; "
                "repair or replace the files."
            )
        yield line, translation
    if not count:
        raise DataError(f"{source} and {target} are empty.\nEach needs one sentence per line; replace the files.")


def _lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8" if number > 1 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(path, number, error) from None
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from None


def in_chunks(pairs: Iterable[Pair], size: int) -> Iterator[Pairs]:
    """Yield the pairs in chunks of ``size``, as source lines and target lines. The last chunk may have fewer."""
    remaining = iter(pairs)
    while chunk := list(islice(remaining, size)):
        yield [source for source, _ in chunk], [target for _, target in chunk]
