"""Parallel text as token ids: the training text encoded once and kept, the held-out splits whole."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rmsexp import checks
from rmsexp.data import DataError
from rmsexp.data.cache import cached, key
from rmsexp.data.parallel import Corpus
from rmsexp.data.sequences import Sequences, offsets
from rmsexp.data.subwords import EOS, UNK, Codec, SubwordOptions, codecs, fingerprint

CHUNK = 100_000  # pairs encoded at a time: lists of ids take ten times the memory of arrays
SIDES = ("source", "target")


@dataclass(frozen=True)
class TextOptions(SubwordOptions):
    """How text becomes tokens.

    ``max_length`` counts subwords, EOS not among them. A training pair with a side that is longer is left out
    (``overlong`` = drop), or both sides are cut to it (cut).

    Raises: ValueError for values that cannot be meant.
    """

    max_length: int
    overlong: str

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("data.max_length", self.max_length, 1)
        checks.choice("data.overlong", self.overlong, ("drop", "cut"))


@dataclass(frozen=True)
class Encoded:
    """Parallel sequences, each of which ends in EOS."""

    source: Sequences
    target: Sequences


@dataclass(frozen=True)
class HeldOut:
    """A split that is scored. All of it is translated, whatever its lengths; ``sources`` and ``references`` are raw.

    ``scored``, int64, are the indices of the pairs that count in the cross-entropy: those with two sides, neither of
    them longer than a training pair may be (``overlong`` = drop).
    """

    pairs: Encoded
    sources: list[str]
    references: list[str]
    scored: np.ndarray


@dataclass(frozen=True)
class Translation:
    """A corpus, encoded. ``held_out``: all splits but train.

    ``counts``, of the training text: pairs ``read``, ``kept``, ``empty`` (on a side) and ``overlong``, and the tokens
    that are UNK, ``source_unknown`` and ``target_unknown``.
    """

    source: Codec
    target: Codec
    train: Encoded
    held_out: Mapping[str, HeldOut]
    counts: Mapping[str, int]


def prepare(corpus: Corpus, options: TextOptions, cache: Path, report: Callable[[str], None]) -> Translation:
    """The encoded corpus; subwords and training text from ``<cache>`` or made and put there.

    ``report`` is told what is made, and what came of the training pairs.

    Raises: DataError if no pair of a split is left, or the result cannot be stored; ValueError as
    :func:`rmsexp.data.subwords.codecs` does.
    """
    folder = cache / "translation" / key(__file__, fingerprint(corpus, options), options.max_length, options.overlong)
    try:
        source, target = codecs(corpus, options, cache, report)
        train, counts = cached(folder, _read, lambda path: _write(path, corpus, source, target, options, report))
    except OSError as error:
        raise DataError(
            f"The encoded text of {corpus.name} cannot be stored in {cache} ({error.strerror or error}).\n"
            "Free some space there, or choose another data.root."
        ) from None
    report(_summary(corpus, counts, options))
    held_out = {split: _held_out(corpus, split, source, target, options) for split in corpus.splits if split != "train"}
    return Translation(source, target, train, held_out, counts)


def _summary(corpus: Corpus, counts: Mapping[str, int], options: TextOptions) -> str:
    overlong = "cut to" if options.overlong == "cut" else "longer than"
    return (
        f"{counts['read']:,} pairs: {counts['kept']:,} kept, {counts['empty']:,} empty, "
        f"{counts['overlong']:,} {overlong} {options.max_length} subwords; unknown subwords: "
        f"{counts['source_unknown']:,} in {corpus.source}, {counts['target_unknown']:,} in {corpus.target}"
    )


def _read(folder: Path) -> tuple[Encoded, dict[str, int]] | None:
    """The stored training text, or None if it is missing or damaged."""
    try:
        sides = [
            Sequences(
                np.asarray(np.load(folder / f"{side}_tokens.npy", mmap_mode="r")),
                np.load(folder / f"{side}_offsets.npy"),
            )
            for side in SIDES
        ]
        counts = json.loads((folder / "counts.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, EOFError):
        return None
    return Encoded(*sides), counts


def _write(
    folder: Path, corpus: Corpus, source: Codec, target: Codec, options: TextOptions, report: Callable[[str], None]
) -> None:
    sources, targets = corpus.splits["train"]()
    report(f"encoding {len(sources):,} training pairs (once)")
    counts, chunks = Counter(read=len(sources), kept=0, empty=0, overlong=0), []
    for start in range(0, len(sources), CHUNK):
        if start:
            report(f"encoded {start:,} of {len(sources):,} pairs")
        chunk = slice(start, start + CHUNK)
        chunks.append(_chunk(source.encode(sources[chunk]), target.encode(targets[chunk]), options, counts))
    if not counts["kept"]:
        raise DataError(
            f"No training pair of {corpus.name} is left: of {counts['read']:,}, {counts['empty']:,} have an empty side "
            f"and {counts['overlong']:,} are longer than data.max_length={options.max_length}."
        )
    for number, side in enumerate(SIDES):
        tokens = np.concatenate([chunk[number].tokens for chunk in chunks])
        lengths = np.concatenate([chunk[number].lengths for chunk in chunks])
        counts[f"{side}_unknown"] = int((tokens == UNK).sum())
        np.save(folder / f"{side}_tokens.npy", tokens)
        np.save(folder / f"{side}_offsets.npy", offsets(lengths))
    (folder / "counts.json").write_text(json.dumps(counts), encoding="utf-8")


def _chunk(
    sources: list[list[int]], targets: list[list[int]], options: TextOptions, counts: Counter[str]
) -> tuple[Sequences, Sequences]:
    """What is kept of some training pairs; adds to ``counts``."""
    kept: list[tuple[list[int], list[int]]] = []
    for source, target in zip(sources, targets, strict=True):
        if not source or not target:
            counts["empty"] += 1
            continue
        if max(len(source), len(target)) > options.max_length:
            counts["overlong"] += 1
            if options.overlong == "drop":
                continue
        kept.append((source[: options.max_length], target[: options.max_length]))
    counts["kept"] += len(kept)
    return _sequences([source for source, _ in kept]), _sequences([target for _, target in kept])


def _sequences(ids: list[list[int]]) -> Sequences:
    """Each with EOS at its end."""
    return Sequences.of([[*one, EOS] for one in ids])


def _held_out(corpus: Corpus, split: str, source: Codec, target: Codec, options: TextOptions) -> HeldOut:
    sources, references = corpus.splits[split]()
    pairs = Encoded(_sequences(source.encode(sources)), _sequences(target.encode(references)))
    lengths = np.stack([pairs.source.lengths, pairs.target.lengths]) - 1
    scored = (lengths > 0).all(axis=0)
    if options.overlong == "drop":
        scored &= (lengths <= options.max_length).all(axis=0)
    if not scored.any():
        raise DataError(
            f"No pair of the {split} split of {corpus.name} can be scored: of {len(sources):,}, each has an empty side "
            f"or is longer than data.max_length={options.max_length}."
        )
    return HeldOut(pairs, sources, references, np.flatnonzero(scored))
