"""Cloze questions as token ids: a passage, a question with a gap, and the word that fills it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from rmsexp.data.sequences import Sequences

NIL, EOS, UNK, NUM = range(4)  # the first ids: padding, end, an unknown word, a number
PLACEHOLDER = "@placeholder"  # the gap


@dataclass(frozen=True)
class Examples:
    """A split. ``answers``, int32 of shape (example,), are word ids; no passage and no question is empty."""

    passages: Sequences
    questions: Sequences
    answers: np.ndarray

    def __len__(self) -> int:
        return len(self.answers)


@dataclass(frozen=True)
class Cloze:
    """Questions, encoded.

    ``words``: the vocabulary by id; ``entities``: int64, the ids of its anonymised names, which may change places.
    ``splits``: train, valid, and test where there is one.
    """

    words: list[str]
    entities: np.ndarray
    splits: Mapping[str, Examples]


@dataclass(frozen=True)
class ClozeSource:
    """Where questions come from.

    ``digest``: of the content, in hexadecimal. ``builtin``: made by this package. ``load`` reads, encodes and checks
    them, or takes them from the cache; it reports what takes long and the counts, and raises DataError.
    """

    name: str
    digest: str
    builtin: bool
    load: Callable[[Callable[[str], None]], Cloze]
