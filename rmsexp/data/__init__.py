"""Data sets: locate or download them, check them, and convert them to arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")
Report = Callable[[str], None]  # takes one line of text: progress, or a summary of the data


class DataError(Exception):
    """Data is missing, is damaged or cannot be stored.

    The message says what is wrong and where, and, on a new line, what to do.
    """


@dataclass(frozen=True)
class Images:
    """Labelled colour images in two splits.

    ``train_x`` and ``test_x`` are uint8 of shape (image, 3, height, width); ``train_y`` and ``test_y`` are int64 of
    shape (image,). ``digest`` is the SHA-256 of the content, in hexadecimal. ``builtin`` is true if this package
    generates the images.
    """

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    name: str
    digest: str
    builtin: bool


@dataclass(frozen=True)
class Source(Generic[T]):
    """A data set that is read when ``load`` is called.

    ``digest`` is a SHA-256, in hexadecimal, that identifies the content. ``builtin`` is true if this package generates
    the data. ``load(report)`` reads, encodes and checks the data, or takes the result from the cache. It reports its
    progress and a summary of the data. It raises DataError if the data cannot be read, encoded or stored.
    """

    name: str
    digest: str
    builtin: bool
    load: Callable[[Report], T]
