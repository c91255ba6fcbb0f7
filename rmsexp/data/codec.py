"""Conversion of text to subword ids and back: what all kinds of subwords share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

PAD, UNK, EOS = 0, 1, 2  # the first ids of every vocabulary, as in the authors' Transformer toolkit
FIRST_SUBWORD = 3
UNKNOWN = "⁇"  # the text that UNK is decoded to, as in sentencepiece


class Codec(Protocol):
    """Converts text of a language to ids and back. It can be pickled.

    ``size`` is the number of ids, including PAD, UNK and EOS.
    """

    size: int

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line, without EOS. A blank line has no ids."""

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Return one line of detokenised text for each sequence of ids. PAD and EOS are ignored."""
