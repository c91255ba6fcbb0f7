"""The data sets: found or fetched, verified, and turned into arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
