"""Images and the captions that describe them: feature vectors, and token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from rmsexp.data.sequences import Sequences

EOS, UNK = range(2)  # the first ids: the end of a caption, an unknown word
PER_IMAGE = 5  # captions


@dataclass(frozen=True)
class Described:
    """A split. Captions ``5 i`` to ``5 i + 4`` belong to image i.

    ``features``: float32 of shape (image, size), rows of unit length, possibly memory-mapped. ``captions``: each ends
    in EOS.
    """

    features: np.ndarray
    captions: Sequences

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True)
class Captions:
    """Images with captions, encoded. ``words``: the vocabulary by id; ``splits``: train, valid and test."""

    words: list[str]
    splits: Mapping[str, Described]


@dataclass(frozen=True)
class CaptionSource:
    """Where images with captions come from.

    ``digest``: of the content, in hexadecimal. ``builtin``: made by this package. ``load`` reads, encodes and checks
    them, or takes them from the cache; it reports what takes long and the counts, and raises DataError.
    """

    name: str
    digest: str
    builtin: bool
    load: Callable[[Callable[[str], None]], Captions]
