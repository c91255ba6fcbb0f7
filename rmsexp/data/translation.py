"""Convert parallel text to token ids, and store them. Held-out splits are the validation and test sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rmsexp.data import DataError, Report, sequences
from rmsexp.data import subwords as encoders
from rmsexp.data.files import cached, key
from rmsexp.data.parallel import SIDES, Corpus, Pairs, in_chunks, in_processes
from rmsexp.data.sequences import Sequences
from rmsexp.data.subwords import EOS, UNK, Codec, Learnt, TextOptions, learnt

CHUNK = 20_000  # pairs encoded at a time, because lists of ids take ten times the memory of arrays


@dataclass(frozen=True)
class Encoded:
    """Encoded pairs: sequence i of ``source`` and sequence i of ``target``. Every sequence ends in EOS."""

    source: Sequences
    target: Sequences


@dataclass(frozen=True)
class HeldOut:
    """A validation or test split, with all its pairs: none is dropped or cut, so every sentence can be translated.

    A cross-entropy is computed of pairs with two non-empty sides that, with ``overlong="drop"``, have at most
    ``max_length`` subwords.
    """

    pairs: Encoded
    sources: list[str]  # raw lines
    references: list[str]  # raw lines
    scored: np.ndarray  # int64 (scored pair,): indices of the pairs whose cross-entropy is computed

    def first(self, count: int | None) -> HeldOut:
        """Return the first ``count`` pairs, or all if there are fewer or ``count`` is None."""
        sources = self.sources[:count]
        pairs = Encoded(self.pairs.source.first(len(sources)), self.pairs.target.first(len(sources)))
        return HeldOut(pairs, sources, self.references[:count], self.scored[self.scored < len(sources)])


@dataclass(frozen=True)
class Translation:
    """An encoded corpus. ``held_out`` has all splits except train. ``subwords`` is a digest of the subwords."""

    source: Codec
    target: Codec
    train: Encoded
    held_out: Mapping[str, HeldOut]
    subwords: str


def prepare(corpus: Corpus, options: TextOptions, root: Path, report: Report) -> Translation:
    """Return a corpus and its subwords, read from folders of ``root``, or computed and stored there.

    Raises: DataError if the text cannot be read, if no training pair is left, if no pair of another split can be
    scored, or if the result cannot be stored; ValueError as in :func:`rmsexp.data.subwords.learnt`.
    """
    subwords = learnt(corpus, options, root, report)
    splits = list(corpus.splits)
    code = key(sequences.__file__), key(encoders.__file__)
    name = key(__file__, code, corpus.digest, corpus.source, corpus.target, splits, options, subwords.digest)
    folder = root / "translation" / name
    encoded = cached(folder, partial(_read, splits), lambda new: _write(new, corpus, subwords, options, report))
    train = encoded.pop("train")
    held_out = {split: _scored(corpus, split, pairs, options, report) for split, pairs in encoded.items()}
    return Translation(subwords.source, subwords.target, train, held_out, subwords.digest)


def _write(folder: Path, corpus: Corpus, subwords: Learnt, options: TextOptions, report: Report) -> None:
    """Store the encoded text of all splits. Raises: DataError if it cannot be read or no training pair is left."""
    codecs, counts = (subwords.source, subwords.target), Counter[str]()
    for part, found in in_processes(partial(_encode, codecs, options), in_chunks(corpus.splits["train"](), CHUNK)):
        counts.update(found)
        for name, side in zip(SIDES, part, strict=True):
            side.save(folder, f"train_{name}")
        overlong = "cut to" if options.overlong == "cut" else "longer than"
        report(
            f"encoded {counts['read']:,} pairs: {counts['kept']:,} kept, {counts['empty']:,} with an empty side, "
            f"{counts['overlong']:,} {overlong} {options.max_length} subwords; {counts['unknown']:,} unknown subwords"
        )
    if not counts["kept"]:
        long = f" or is longer than data.max_length={options.max_length}" * (options.overlong == "drop")
        raise DataError(
            f"No training pair of {corpus.name} is left: each has an empty side{long}.\n"
            f"{'Raise data.max_length, or repair' if long else 'Repair'} the text."
        )
    for split in corpus.splits:
        if split != "train":
            for name, codec, lines in zip(SIDES, codecs, corpus.text(split), strict=True):
                _sequences(codec.encode(lines)).save(folder, f"{split}_{name}")


def _read(splits: list[str], folder: Path) -> dict[str, Encoded]:
    return {split: Encoded(*(Sequences.load(folder, f"{split}_{side}") for side in SIDES)) for split in splits}


def _encode(
    codecs: tuple[Codec, Codec], options: TextOptions, pairs: Pairs
) -> tuple[tuple[Sequences, Sequences], dict[str, int]]:
    """Return the source and the target sequences of training pairs, and numbers of pairs and of unknown subwords."""
    counts = {"read": len(pairs[0]), "kept": 0, "empty": 0, "overlong": 0}
    kept: tuple[list[list[int]], list[list[int]]] = ([], [])
    for encoded in zip(*(codec.encode(lines) for codec, lines in zip(codecs, pairs, strict=True)), strict=True):
        if not all(encoded):
            counts["empty"] += 1
            continue
        if max(map(len, encoded)) > options.max_length:
            counts["overlong"] += 1
            if options.overlong == "drop":
                continue
        for ids, side in zip(encoded, kept, strict=True):
            side.append(ids[: options.max_length])
    source, target = map(_sequences, kept)
    counts |= {"kept": len(source), "unknown": sum(int((side.tokens == UNK).sum()) for side in (source, target))}
    return (source, target), counts


def _sequences(lines: list[list[int]]) -> Sequences:
    """Return lists of ids as sequences with EOS."""
    return Sequences.from_lists([[*ids, EOS] for ids in lines])


def _scored(corpus: Corpus, split: str, pairs: Encoded, options: TextOptions, report: Report) -> HeldOut:
    lengths = np.stack([pairs.source.lengths, pairs.target.lengths]) - 1  # (side, pair), without EOS
    scored = (lengths > 0).all(axis=0)
    if options.overlong == "drop":
        scored &= (lengths <= options.max_length).all(axis=0)
    if not scored.any():
        long = f", or more than data.max_length={options.max_length} subwords" * (options.overlong == "drop")
        raise DataError(
            f"No pair of the {split} split of {corpus.name} can be scored: each has an empty side{long}.\n"
            f"Repair the text{', or raise data.max_length' if long else ''}."
        )
    if left_out := np.count_nonzero(~scored):
        overlong = f", or longer than {options.max_length} subwords" if options.overlong == "drop" else ""
        report(f"{split}: the loss leaves out {left_out:,} of {len(pairs.source):,} pairs (empty{overlong})")
    return HeldOut(pairs, *corpus.text(split), np.flatnonzero(scored))
