"""Learn subwords on the training text, and convert text to subword ids and back.

There are two kinds.

- ``sentencepiece``: byte-pair encoding of raw text, with one model for both languages.
- ``moses_bpe``: as in the paper. Moses' punctuation normalisation, tokenisation and truecasing come first, then
  byte-pair encoding (Sennrich et al., 2016). The merges are learnt on both languages together; each language has its
  own vocabulary.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from rmsexp.data import DataError, Report, cache, moses, parts, pieces
from rmsexp.data.codec import EOS, FIRST_SUBWORD, PAD, UNK, Codec
from rmsexp.data.parallel import Corpus
from rmsexp.system import checks

LARGEST_VOCABULARY = 10**9  # sentencepiece takes integers of 32 bits
LEARNT = "learnt"  # the name of the file with the digest of the subwords
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
        checks.choice("data.subwords", self.kind, tuple(KINDS))
        least = FIRST_SUBWORD + 1 if self.kind == "sentencepiece" else 1
        checks.at_least("data.vocabulary", self.vocabulary, least, LARGEST_VOCABULARY)
        checks.at_least("data.threshold", self.threshold, 0)
        if self.threshold and self.kind != "moses_bpe":
            raise ValueError(f"data.threshold must be 0 with data.subwords={self.kind}, got {self.threshold}")


def codecs(corpus: Corpus, options: SubwordOptions, root: Path, report: Report) -> tuple[Codec, Codec]:
    """Return the codecs of source and target.

    They are read from ``<root>/subwords``, or learnt on the training split and stored there.

    Raises: ValueError if ``options.vocabulary`` is too large or too small for the text, if ``options.threshold`` is too
    large, or if the packages for moses_bpe are not installed; DataError if the training text is blank or cannot be
    read, or if the result cannot be stored.
    """
    if options.kind == "moses_bpe" and not all(map(importlib.util.find_spec, ("sacremoses", "subword_nmt"))):
        raise ValueError('data.subwords=moses_bpe needs sacremoses and subword-nmt: pip install "rmsexp[parity]"')
    kind = KINDS[options.kind]
    folder = root / "subwords" / fingerprint(corpus, options)
    work = parts.parts_folder(folder)

    def make(folder: Path) -> None:
        pairs = sum(1 for _ in corpus.splits["train"]())
        report(f"learning {options.vocabulary:,} subwords from {pairs:,} pairs (once)")
        if not any(line.strip() for line in chain.from_iterable(corpus.splits["train"]())):
            raise DataError(
                f"The training text of {corpus.name} is empty: there is nothing to learn subwords from.\n"
                "Replace the files."
            )
        try:
            kind.learn(corpus, pairs, options, work, folder, report)
        except ValueError:  # the options do not fit the text, so that the parts are of no use
            cache.remove(work)
            raise
        (folder / LEARNT).write_text(kind.digest(folder))

    found = cache.cached(folder, lambda folder: kind.load(folder, corpus), make, report)
    shutil.rmtree(work, ignore_errors=True)
    return found


def learnt_digest(corpus: Corpus, options: SubwordOptions, root: Path) -> str:
    """Return a digest of the subwords that :func:`codecs` has stored. Other subwords would give other token ids."""
    return (root / "subwords" / fingerprint(corpus, options) / LEARNT).read_text()


def fingerprint(corpus: Corpus, options: SubwordOptions) -> str:
    """Return 16 hexadecimal digits: a hash of the corpus' digest and languages, the options, and the code of the kind.

    They do not depend on the versions of the packages that learn the subwords; :func:`learnt_digest` does.
    """
    languages, chosen = (corpus.source, corpus.target), (options.kind, options.vocabulary, options.threshold)
    code = [cache.key(file) for file in KINDS[options.kind].modules]
    return cache.key(__file__, *code, corpus.digest, languages, *chosen)


def _learn_sentencepiece(
    corpus: Corpus, pairs: int, options: SubwordOptions, _work: Path, folder: Path, _report: Report
) -> None:
    chosen = islice(corpus.splits["train"](), 0, None, -(-pairs // MOST_PAIRS))
    ids = {"pad_id": PAD, "unk_id": UNK, "eos_id": EOS}
    model = pieces.learn(chain.from_iterable(chosen), options.vocabulary, corpus.name, **ids)
    (folder / "model").write_bytes(model)


def _learn_moses_bpe(
    corpus: Corpus, pairs: int, options: SubwordOptions, work: Path, folder: Path, report: Report
) -> None:
    moses.learn(corpus, pairs, options.vocabulary, options.threshold, work, folder, report)


class _SentencePiece:
    def __init__(self, model: bytes) -> None:
        self._processor = pieces.load(model)
        self.size: int = self._processor.get_piece_size()

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return self._processor.encode(list(lines), num_threads=1)

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return [self._processor.decode([int(i) for i in ids if i not in (PAD, EOS)]) for ids in sequences]


def _load_sentencepiece(folder: Path, _corpus: Corpus) -> tuple[Codec, Codec]:
    codec = _SentencePiece((folder / "model").read_bytes())
    return codec, codec


def _load_moses_bpe(folder: Path, corpus: Corpus) -> tuple[Codec, Codec]:
    return moses.MosesBPE(folder, "source", corpus.source), moses.MosesBPE(folder, "target", corpus.target)


def _sentencepiece_digest(folder: Path) -> str:
    return pieces.digest(pieces.load((folder / "model").read_bytes()))


class Kind(NamedTuple):
    """How subwords of a kind are learnt and stored in a folder, read from it as codecs, and told apart by a digest.

    ``modules``: the files of the code that learns them; other files may change without learning them again.
    """

    modules: tuple[str, ...]
    learn: Callable[..., None]
    load: Callable[[Path, Corpus], tuple[Codec, Codec]]
    digest: Callable[[Path], str]


KINDS = {
    "sentencepiece": Kind((pieces.__file__,), _learn_sentencepiece, _load_sentencepiece, _sentencepiece_digest),
    "moses_bpe": Kind((moses.__file__,), _learn_moses_bpe, _load_moses_bpe, moses.digest),
}
