"""Cloze questions as token ids: a passage, a question with a gap, and the word that fills it."""

from __future__ import annotations

import json
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rmsexp.data import DataError
from rmsexp.data.cache import cached, key
from rmsexp.data.sequences import Sequences, offsets

NIL, EOS, UNK, NUM = range(4)  # the first ids: padding, end, an unknown word, a number
RESERVED = ("<nil>", "<eos>", "<unk>", "<num>")  # their names
PLACEHOLDER = "@placeholder"  # the gap
ENTITY = re.compile(r"@entity(0|[1-9]\d{0,4})")  # an anonymised name
SENTENCE_ENDS = frozenset(".?!")
CHUNK = 1_000_000  # tokens counted or renumbered at a time: numpy's index arrays take twice the memory of ids


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
class Question:
    """An example in lower-cased words; ``entities`` are the names behind its ``@entityN``."""

    passage: list[str]
    question: list[str]  # PLACEHOLDER is one of the words
    answer: str
    entities: Mapping[str, str]


def split_sentences(words: Iterable[str], closing: Collection[str] = ()) -> list[list[str]]:
    """Words cut after each of SENTENCE_ENDS; a word of ``closing`` that follows belongs to the sentence before."""
    cut: list[list[str]] = []
    ended = True
    for word in words:
        if ended and not (cut and word in closing):
            cut.append([])
            ended = False
        cut[-1].append(word)
        ended = ended or word in SENTENCE_ENDS
    return cut


def entities(words: Iterable[str]) -> np.ndarray:
    """The ids of a vocabulary's anonymised names, int64."""
    return np.array([number for number, word in enumerate(words) if ENTITY.fullmatch(word)], dtype=np.int64)


def encode(name: str, splits: Mapping[str, Iterable[Question]]) -> Cloze:
    """Questions as ids; ``name`` is that of the data, for messages.

    The vocabulary is that of the published ``preprocess.py`` and ``preprocess_shortend.py`` (cooijmanstim/
    Attentive_reader): words of digits become NUM, those that the training text (passages, questions and answers) has
    once UNK, and the others have ids from 4 by falling frequency, ties by first appearance. Beyond it, the gap and all
    of ``@entity0`` to the highest of any split are words, however rare. Takes four bytes of memory a token.

    Raises: DataError if a split has no examples, and whatever reading them raises.
    """
    ids: defaultdict[str, int] = defaultdict()
    ids.default_factory = ids.__len__  # by first appearance, since questions are read only once; renumbered below
    encoded = {split: _gathered(name, split, questions, ids) for split, questions in splits.items()}
    highest = max((int(match[1]) for match in map(ENTITY.fullmatch, ids) if match), default=-1)
    always = dict.fromkeys([PLACEHOLDER, *(f"@entity{number}" for number in range(highest + 1))])
    types = list(ids | always)
    frequency = np.zeros(len(types), dtype=np.int64)
    for chunk in _chunks(encoded["train"]):
        frequency += np.bincount(chunk, minlength=len(types))
    words = list(RESERVED)
    for index in np.argsort(-frequency, kind="stable"):
        word = types[index]
        if word in always or (frequency[index] > 1 and not word.isdigit() and word not in RESERVED):
            words.append(word)
    known = {word: number for number, word in enumerate(words)}
    table = np.array([NUM if word.isdigit() else known.get(word, UNK) for word in types], dtype=np.int32)
    for examples in encoded.values():
        for chunk in _chunks(examples):
            chunk[:] = table[chunk]
    return Cloze(words, entities(words), encoded)


def _gathered(name: str, split: str, questions: Iterable[Question], ids: Mapping[str, int]) -> Examples:
    passages, gaps, answers = array("i"), array("i"), array("i")
    passage_lengths, gap_lengths = array("q"), array("q")
    for one in questions:
        passages.extend(map(ids.__getitem__, one.passage))
        passage_lengths.append(len(one.passage))
        gaps.extend(map(ids.__getitem__, one.question))
        gap_lengths.append(len(one.question))
        answers.append(ids[one.answer])
    if not answers:
        raise DataError(f"No example of {name} is left in its {split} split.\nReplace the data, or use scale=demo.")
    return Examples(
        Sequences(np.asarray(passages), offsets(passage_lengths)),
        Sequences(np.asarray(gaps), offsets(gap_lengths)),
        np.asarray(answers),
    )


def _chunks(examples: Examples) -> Iterator[np.ndarray]:
    """Views of all ids of a split."""
    for ids in (examples.passages.tokens, examples.questions.tokens, examples.answers):
        for start in range(0, len(ids), CHUNK):
            yield ids[start : start + CHUNK]


def stored(
    root: Path, name: str, stamp: str, make: Callable[[], tuple[Cloze, Mapping[str, int]]]
) -> tuple[Cloze, dict[str, int]]:
    """Questions and counts from ``<root>/cloze``, tokens memory-mapped, or made and put there.

    ``stamp`` tells what is made from what else may be. The number of examples in each split is among the counts.

    Raises: DataError if the result cannot be stored, and whatever ``make`` raises.
    """
    try:
        return cached(root / "cloze" / key(__file__, stamp), _read, lambda folder: _write(folder, *make()))
    except OSError as error:
        raise DataError(
            f"The encoded questions of {name} cannot be stored in {root} ({error.strerror or error}).\n"
            "Free some space there, or choose another data.root."
        ) from None


def _write(folder: Path, cloze: Cloze, counts: Mapping[str, int]) -> None:
    for split, examples in cloze.splits.items():
        for part, sequences in (("passages", examples.passages), ("questions", examples.questions)):
            np.save(folder / f"{split}_{part}_tokens.npy", sequences.tokens)
            np.save(folder / f"{split}_{part}_offsets.npy", sequences.offsets)
        np.save(folder / f"{split}_answers.npy", examples.answers)
    sizes = {split: len(examples) for split, examples in cloze.splits.items()}
    (folder / "words.json").write_text(json.dumps(cloze.words), encoding="utf-8")
    (folder / "counts.json").write_text(json.dumps({**counts, **sizes}), encoding="utf-8")


def _read(folder: Path) -> tuple[Cloze, dict[str, int]] | None:
    """What is stored, or None if it is missing or damaged."""
    try:
        words = json.loads((folder / "words.json").read_text(encoding="utf-8"))
        counts = json.loads((folder / "counts.json").read_text(encoding="utf-8"))
        splits = {
            split: Examples(
                _read_sequences(folder, f"{split}_passages"),
                _read_sequences(folder, f"{split}_questions"),
                np.load(folder / f"{split}_answers.npy"),
            )
            for split in ("train", "valid", "test")
            if split in counts
        }
    except (FileNotFoundError, ValueError, EOFError):
        return None
    return Cloze(words, entities(words), splits), counts


def _read_sequences(folder: Path, name: str) -> Sequences:
    tokens = np.asarray(np.load(folder / f"{name}_tokens.npy", mmap_mode="r"))
    return Sequences(tokens, np.load(folder / f"{name}_offsets.npy"))
