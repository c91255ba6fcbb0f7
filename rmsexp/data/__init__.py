"""The data sets: found or fetched, verified, and turned into arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")


class DataError(Exception):
    """Data that is missing, damaged or cannot be stored; one or two lines: what is wrong, where, what to do."""


@dataclass(frozen=True)
class Images:
    """A labelled set of colour images in two splits.

    ``*_x`` are uint8 of shape (image, 3, height, width), ``*_y`` int64 of shape (image,). ``digest`` is the sha256 of
    the content, in hexadecimal; ``builtin`` says that the package made the images itself.
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
    """Where data come from that are made ready when they are loaded.

    ``digest``: of the content, in hexadecimal. ``builtin``: made by this package. ``load`` reads, encodes and checks
    them, or takes them from the cache; it reports what takes long and the counts, and raises DataError.
    """

    name: str
    digest: str
    builtin: bool
    load: Callable[[Callable[[str], None]], T]
