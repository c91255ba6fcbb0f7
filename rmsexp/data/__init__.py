"""Data sets: find, download or generate them, check them, and convert them to arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from rmsexp.system.command_line import ReportedError

T = TypeVar("T")
Report = Callable[[str], None]  # is called with one line of text: progress, or a summary of the data


class DataError(ReportedError):
    """Raised if data is missing, unusable or damaged, or cannot be stored. The second line says what to do."""


@dataclass(frozen=True)
class Images:
    """Labelled colour images in two splits, or three with validation images.

    Images ``…_x`` are uint8, or float32 if whitened, of shape (image, 3, height, width); labels ``…_y`` are int64 of
    shape (image,). For ``digest`` and ``builtin`` see :class:`Source`.
    """

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    name: str
    digest: str
    builtin: bool
    valid_x: np.ndarray | None = None
    valid_y: np.ndarray | None = None

    @property
    def pixels(self) -> dict[str, np.ndarray]:
        valid = {} if self.valid_x is None else {"valid_x": self.valid_x}
        return {"train_x": self.train_x, **valid, "test_x": self.test_x}

    def with_validation(self, count: int) -> Images:
        """Return the data set with the last ``count`` training images as validation images.

        Raises: ValueError if no training image would be left.
        """
        rest = len(self.train_y) - count
        if rest < 1:
            raise ValueError(f"data.validation={count} leaves none of the {len(self.train_y)} training images")
        return replace(
            self,
            train_x=self.train_x[:rest],
            train_y=self.train_y[:rest],
            valid_x=self.train_x[rest:],
            valid_y=self.train_y[rest:],
            digest=hashlib.sha256(f"{self.digest}, validation {count}".encode()).hexdigest(),
        )


@dataclass(frozen=True)
class Source(Generic[T]):
    """A data set, whose arrays ``load`` returns.

    ``digest`` is a SHA-256, in hexadecimal, that identifies the data; of large files it may cover only names and sizes.
    ``builtin`` is true if this package generates the data. Otherwise ``load(report)`` reads, encodes and checks them,
    or takes stored results from the cache. It raises DataError if they cannot be read, encoded or stored.
    """

    name: str
    digest: str
    builtin: bool
    load: Callable[[Report], T]
