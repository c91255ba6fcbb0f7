"""Learn subwords on the training text, and convert text to subword ids and back.

There are two kinds.

- ``sentencepiece``: byte-pair encoding of raw text, with one model for both languages.
- ``moses_bpe``: as in the paper. Moses' punctuation normalisation, tokenisation and truecasing come first, then
  byte-pair encoding (Sennrich et al., 2016). The merges are learnt on both languages together; each language has its
  own vocabulary.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from rmsexp.data import DataError, Report, moses, pieces
from rmsexp.data.cache import cached, key
from rmsexp.data.codec import EOS, FIRST_SUBWORD, PAD, UNK, Codec
from rmsexp.data.parallel import Corpus
from rmsexp.system import checks

KINDS = ("sentencepiece", "moses_bpe")
LARGEST_VOCABULARY = 10**9  # sentencepiece takes integers of 32 bits
MOST_PAIRS = 500_000  # from which sentencepiece learns; of longer texts every n-th pair is taken


@dataclass(frozen=True)
class SubwordOptions:
    """How subwords are learnt.

    ``kind`` is sentencepiece or moses_bpe. ``vocabulary`` is the number of pieces, including PAD, UNK and EOS
    (sentencepiece), or of merges (moses_bpe), for both languages together. ``threshold`` must be 0 with sentencepiece.
    With moses_bpe, a subword that occurs fewer than ``threshold`` times in its language's training text is split into
    shorter ones.

    Raises: ValueError for invalid values.
    """

    kind: str
    vocabulary: int
    threshold: int

    def __post_init__(self) -> None:
        checks.choice("data.subwords", self.kind, KINDS)
        least = FIRST_SUBWORD + 1 if self.kind == "sentencepiece" else 1
        checks.at_least("data.vocabulary", self.vocabulary, least, LARGEST_VOCABULARY)
        checks.at_least("data.threshold", self.threshold, 0)
        if self.threshold and self.kind != "moses_bpe":
            raise ValueError(f"data.threshold must be 0 with data.subwords={self.kind}, got {self.threshold}")


class Learnt(NamedTuple):
    """The codecs of source and target, and a digest of the subwords: other ones would give other token ids."""

    source: Codec
    target: Codec
    digest: str


def learnt(corpus: Corpus, options: SubwordOptions, root: Path, report: Report) -> Learnt:
    """Return the subwords. They are read from ``<root>/subwords``, or learnt on the training split and stored there.

    Raises: ValueError if ``options.vocabulary`` is too large or too small for the text, if ``options.threshold`` is too
    large, or if the packages for moses_bpe are not installed; DataError if the training text is blank or cannot be
    read, or if the result cannot be stored.
    """
    if options.kind == "moses_bpe" and not all(map(importlib.util.find_spec, ("sacremoses", "subword_nmt"))):
        raise ValueError('data.subwords=moses_bpe needs sacremoses and subword-nmt: pip install "rmsexp[parity]"')
    learn, load = (
        (moses.learn, _load_moses) if options.kind == "moses_bpe" else (_learn_sentencepiece, _load_sentencepiece)
    )
    code = key(moses.__file__), key(pieces.__file__)
    languages, chosen = (corpus.source, corpus.target), (options.vocabulary, options.threshold)
    folder = root / "subwords" / key(__file__, *code, corpus.digest, languages, options.kind, *chosen)

    def make(folder: Path) -> None:
        report(f"learning {options.vocabulary:,} subwords (once)")
        if not any(line.strip() for line in chain.from_iterable(corpus.splits["train"]())):
            raise DataError(
                f"The training text of {corpus.name} is empty: there is nothing to learn subwords from.\n"
                "Replace the files."
            )
        learn(corpus, *chosen, folder, report)

    return cached(folder, partial(load, corpus), make)


def _learn_sentencepiece(corpus: Corpus, vocabulary: int, _threshold: int, folder: Path, _report: Report) -> None:
    pairs = sum(1 for _ in corpus.splits["train"]())
    chosen = islice(corpus.splits["train"](), 0, None, -(-pairs // MOST_PAIRS))
    ids = {"pad_id": PAD, "unk_id": UNK, "eos_id": EOS}
    (folder / "model").write_bytes(pieces.learn(chain.from_iterable(chosen), vocabulary, corpus.name, **ids))


class _SentencePiece:
    def __init__(self, model: bytes) -> None:
        self.processor = pieces.load(model)
        self.size: int = self.processor.get_piece_size()

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return self.processor.encode(list(lines), num_threads=1)

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return [self.processor.decode([int(i) for i in ids if i not in (PAD, EOS)]) for ids in sequences]


def _load_sentencepiece(_corpus: Corpus, folder: Path) -> Learnt:
    codec = _SentencePiece((folder / "model").read_bytes())
    return Learnt(codec, codec, pieces.digest(codec.processor))


def _load_moses(corpus: Corpus, folder: Path) -> Learnt:
    source, target = moses.loaded(folder, "source", corpus.source), moses.loaded(folder, "target", corpus.target)
    return Learnt(source, target, moses.digest(folder))
