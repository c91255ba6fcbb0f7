"""Data sets: find, download or generate them, check them, and convert them to arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
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
    """Labelled colour images by split: "train" and "test", and perhaps "valid".

    Images ``x`` are uint8, or float32 if whitened, of shape (image, 3, height, width); labels ``y`` are int64 of shape
    (image,). For ``digest`` and ``builtin`` see :class:`Source`.
    """

    x: Mapping[str, np.ndarray]
    y: Mapping[str, np.ndarray]
    name: str
    digest: str
    builtin: bool

    def with_validation(self, count: int) -> Images:
        """Return the data set with the last ``count`` training images as validation images.

        Raises: ValueError if no training image would be left.
        """
        rest = len(self.y["train"]) - count
        if rest < 1:
            raise ValueError(f"data.validation={count} leaves none of the {len(self.y['train'])} training images")
        x, y = ({**own, "train": own["train"][:rest], "valid": own["train"][rest:]} for own in (self.x, self.y))
        digest = hashlib.sha256(f"{self.digest}, validation {count}".encode()).hexdigest()
        return replace(self, x=x, y=y, digest=digest)


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
