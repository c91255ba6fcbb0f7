"""Convert parallel text to token ids. All text is encoded once and stored.

Held-out splits are the validation and test sets.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rmsexp.data import DataError, Report, sequences
from rmsexp.data.cache import cached, key
from rmsexp.data.codec import EOS, UNK, Codec
from rmsexp.data.pairs import SIDES, Pairs, in_chunks
from rmsexp.data.parallel import Corpus
from rmsexp.data.parts import parts_folder, processes, stored
from rmsexp.data.sequences import Sequences
from rmsexp.data.subwords import SubwordOptions, codecs, fingerprint, learnt_digest
from rmsexp.system import checks

CHUNK = 20_000  # pairs encoded at a time, because lists of ids take ten times the memory of arrays


@dataclass(frozen=True)
class TextOptions(SubwordOptions):
    """How text is converted to tokens.

    ``max_length`` is a number of subwords, without EOS. A training pair with a longer side is left out
    (``overlong="drop"``), or each side is cut to at most ``max_length`` (``overlong="cut"``).

    Raises: ValueError for invalid values.
    """

    max_length: int
    overlong: str

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("data.max_length", self.max_length, 1)
        checks.choice("data.overlong", self.overlong, ("drop", "cut"))


@dataclass(frozen=True)
class Encoded:
    """Encoded pairs: sequence i of ``source`` and sequence i of ``target``. Every sequence ends in EOS."""

    source: Sequences
    target: Sequences


@dataclass(frozen=True)
class HeldOut:
    """A validation or test split, with all its pairs: none is dropped or cut, so every sentence can be translated.

    ``sources`` and ``references`` are raw lines. ``scored``, int64 of shape (scored pair,), has the indices of the
    pairs whose cross-entropy is computed: both sides are non-empty and, with ``overlong="drop"``, have at most
    ``max_length`` subwords.
    """

    pairs: Encoded
    sources: list[str]
    references: list[str]
    scored: np.ndarray

    def first(self, count: int | None) -> HeldOut:
        """Return the first ``count`` pairs, or all if there are fewer or ``count`` is None."""
        if count is None:
            return self
        pairs = Encoded(self.pairs.source.first(count), self.pairs.target.first(count))
        return HeldOut(pairs, self.sources[:count], self.references[:count], self.scored[self.scored < count])


@dataclass(frozen=True)
class Translation:
    """An encoded corpus. ``source`` and ``target`` are the codecs. ``held_out`` has all splits except train.

    ``counts`` describes the training text. ``read``, ``kept``, ``empty`` (a side has no subwords) and ``overlong`` (a
    side is longer than ``max_length``; dropped, or cut and kept) are numbers of pairs. ``source_unknown`` and
    ``target_unknown`` are numbers of UNK tokens in the pairs that were kept. ``subwords`` is a digest of the subwords.
    """

    source: Codec
    target: Codec
    train: Encoded
    held_out: Mapping[str, HeldOut]
    counts: Mapping[str, int]
    subwords: str


def prepare(corpus: Corpus, options: TextOptions, cache: Path, report: Report) -> Translation:
    """Encode a corpus, and report a summary of the training text and the held-out pairs without a loss.

    Subwords and all encoded text are read from the folder ``cache``, or computed and stored there.

    Raises: DataError if the text cannot be read, if no training pair is left, if no pair of another split can be
    scored, or if the result cannot be stored; ValueError as in :func:`rmsexp.data.subwords.codecs`.
    """
    source, target = codecs(corpus, options, cache, report)
    subwords = learnt_digest(corpus, options, cache)  # other packages may learn others from the same text
    text = key(__file__, fingerprint(corpus, options), subwords)
    folder = cache / "translation" / key(__file__, text, options.max_length, options.overlong)
    work = parts_folder(folder)
    train, counts = cached(
        folder, _read, lambda path: _write(path, corpus, (source, target), options, work, report), report
    )
    shutil.rmtree(work, ignore_errors=True)
    report(_summary(corpus, counts, options))
    places = {split: cache / "held_out" / key(__file__, text, split) for split in corpus.splits if split != "train"}
    held_out = {
        split: _held_out(corpus, split, (source, target), options, place, report) for split, place in places.items()
    }
    return Translation(source, target, train, held_out, counts, subwords)


def _summary(corpus: Corpus, counts: Mapping[str, int], options: TextOptions) -> str:
    overlong = "cut to" if options.overlong == "cut" else "longer than"
    return (
        f"{counts['read']:,} pairs: {counts['kept']:,} kept, {counts['empty']:,} empty, "
        f"{counts['overlong']:,} {overlong} {options.max_length} subwords; unknown subwords: "
        f"{counts['source_unknown']:,} in {corpus.source}, {counts['target_unknown']:,} in {corpus.target}"
    )


def _read(folder: Path) -> tuple[Encoded, dict[str, int]]:
    """Return the stored training text and its counts (see :class:`Translation`).

    Raises: FileNotFoundError, ValueError or EOFError if a file is missing or damaged.
    """
    sides = [Sequences.load(folder, side) for side in SIDES]
    return Encoded(*sides), json.loads((folder / "counts.json").read_text(encoding="utf-8"))


def _write(
    folder: Path, corpus: Corpus, codecs: tuple[Codec, Codec], options: TextOptions, work: Path, report: Report
) -> None:
    """Encode the training text in parts, which are stored in ``work``, and store it with its counts in ``folder``.

    Raises: DataError if the text cannot be read or no pair is left.
    """
    pairs = sum(1 for _ in corpus.splits["train"]())
    report(f"encoding {pairs:,} training pairs (once)")
    chunks, counts = in_chunks(corpus.splits["train"](), CHUNK), Counter[str]()
    parallel = processes(-(-pairs // CHUNK))
    parts = []
    for part in stored(work, partial(_encode, codecs, options), chunks, parallel, report):
        parts.append(part)
        counts.update(json.loads((part / "counts.json").read_text()))
        if len(parts) * CHUNK < pairs:
            report(f"encoded {len(parts) * CHUNK:,} of {pairs:,} pairs")
    if not counts["kept"]:
        shutil.rmtree(work)
        raise DataError(
            f"No training pair of {corpus.name} is left: of {counts['read']:,}, {counts['empty']:,} have an empty side "
            f"and {counts['overlong']:,} are longer than data.max_length={options.max_length}.\n"
            "Raise data.max_length, or repair the text."
        )
    for side in SIDES:
        sequences.join(parts, folder, side)
    (folder / "counts.json").write_text(json.dumps(counts), encoding="utf-8")


def _encode(codecs: tuple[Codec, Codec], options: TextOptions, pairs: Pairs, folder: Path) -> None:
    """Store the source and the target sequences of some pairs, and their counts (see :class:`Translation`).

    Pairs with an empty side are left out. Overlong pairs are dropped or cut, as ``options.overlong`` says.
    """
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
    counts["kept"] = len(kept[0])
    for name, lines in zip(SIDES, kept, strict=True):
        found = _sequences(lines)
        counts[f"{name}_unknown"] = found.count(UNK)
        found.save(folder, name)
    (folder / "counts.json").write_text(json.dumps(counts), encoding="utf-8")


def _sequences(lines: list[list[int]]) -> Sequences:
    """Return lists of ids as sequences, with EOS added at the end of each."""
    return Sequences.from_lists([[*ids, EOS] for ids in lines])


def _held_out(
    corpus: Corpus, split: str, codecs: tuple[Codec, Codec], options: TextOptions, folder: Path, report: Report
) -> HeldOut:
    """Return a validation or test split, whose encoded text is read from ``folder`` or stored there."""
    text = corpus.text(split)
    sources, references = text

    def make(folder: Path) -> None:
        for side, codec, lines in zip(SIDES, codecs, text, strict=True):
            _sequences(codec.encode(lines)).save(folder, side)

    def read(folder: Path) -> Encoded:
        return Encoded(*(Sequences.load(folder, side) for side in SIDES))

    pairs = cached(folder, read, make, report)
    lengths = np.stack([pairs.source.lengths, pairs.target.lengths]) - 1  # (side, pair), without EOS
    scored = (lengths > 0).all(axis=0)
    if options.overlong == "drop":
        scored &= (lengths <= options.max_length).all(axis=0)
    if not scored.any():
        raise DataError(
            f"No pair of the {split} split of {corpus.name} can be scored: of {len(sources):,}, each has an empty side "
            f"or is longer than data.max_length={options.max_length}.\nRaise data.max_length, or repair the text."
        )
    if left_out := np.count_nonzero(~scored):
        overlong = f", or longer than {options.max_length} subwords" if options.overlong == "drop" else ""
        report(f"{split}: the loss leaves out {left_out:,} of {len(sources):,} pairs (empty{overlong})")
    return HeldOut(pairs, sources, references, np.flatnonzero(scored))
