"""Cloze questions as token ids: a passage, a question with a gap, and the word that fills the gap."""

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
from rmsexp.data.cache import cached, key, storing
from rmsexp.data.sequences import Sequences, offsets

NIL, EOS, UNK, NUM = range(4)  # the first ids: padding, end, an unknown word, a number
RESERVED = ("<nil>", "<eos>", "<unk>", "<num>")  # the names of these ids
PLACEHOLDER = "@placeholder"  # the gap
ENTITY = re.compile(r"@entity(0|[1-9]\d{0,4})")  # an anonymised name
SENTENCE_ENDS = frozenset(".?!")
CHUNK = 1_000_000  # tokens counted or renumbered at a time, because numpy's index arrays take twice the memory of ids


@dataclass(frozen=True)
class Examples:
    """Questions of a split. ``answers``, int32 of shape (example,), are word ids. No passage or question is empty."""

    passages: Sequences
    questions: Sequences
    answers: np.ndarray

    def __len__(self) -> int:
        return len(self.answers)


@dataclass(frozen=True)
class Cloze:
    """An encoded data set.

    ``words`` is the vocabulary by id. ``entities``, int64 of shape (entity,), are the ids of its anonymised names,
    which training may permute. ``splits`` has train, valid and, if the data set has it, test.
    """

    words: list[str]
    entities: np.ndarray
    splits: Mapping[str, Examples]


@dataclass(frozen=True)
class Question:
    """A question with its passage and answer, as lower-case words.

    ``entities`` maps each ``@entityN`` to the name that it replaces.
    """

    passage: list[str]
    question: list[str]  # contains PLACEHOLDER
    answer: str
    entities: Mapping[str, str]


def split_sentences(words: Iterable[str], closing: Collection[str] = ()) -> list[list[str]]:
    """Split words into sentences, each ending with one of SENTENCE_ENDS and any words of ``closing`` after it."""
    sentences: list[list[str]] = []
    ended = True
    for word in words:
        if ended and not (sentences and word in closing):
            sentences.append([])
            ended = False
        sentences[-1].append(word)
        ended = ended or word in SENTENCE_ENDS
    return sentences


def entities(words: Iterable[str]) -> np.ndarray:
    """Return the ids of a vocabulary's anonymised names, int64 of shape (entity,)."""
    return np.array([number for number, word in enumerate(words) if ENTITY.fullmatch(word)], dtype=np.int64)


def encode(name: str, splits: Mapping[str, Iterable[Question]]) -> Cloze:
    """Encode questions as ids. ``name`` is the data set's name, for messages.

    The vocabulary is that of the published ``preprocess.py`` and ``preprocess_shortend.py``
    (cooijmanstim/Attentive_reader). Words of digits become NUM. Words that occur less than twice in the training text
    (passages, questions and answers) become UNK. The others have ids from 4 on, the most frequent first, and those of
    equal frequency by first appearance. The gap, and ``@entity0`` to the highest number of an entity in any split, are
    always in the vocabulary. Encoding takes four bytes of memory per token.

    Raises: DataError if a split has no examples, and whatever the iterables in ``splits`` raise.
    """
    ids: defaultdict[str, int] = defaultdict()
    # The questions are read only once, so words get temporary ids, in the order in which they appear.
    ids.default_factory = ids.__len__
    encoded = {split: _examples(name, split, questions, ids) for split, questions in splits.items()}
    highest = max((int(match[1]) for match in map(ENTITY.fullmatch, ids) if match), default=-1)
    always_known = dict.fromkeys([PLACEHOLDER, *(f"@entity{number}" for number in range(highest + 1))])
    types = list(ids | always_known)
    frequency = np.zeros(len(types), dtype=np.int64)
    for chunk in _chunks(encoded["train"]):
        frequency += np.bincount(chunk, minlength=len(types))
    words = list(RESERVED)
    for index in np.argsort(-frequency, kind="stable"):
        word = types[index]
        if word in always_known or (frequency[index] > 1 and not word.isdigit() and word not in RESERVED):
            words.append(word)
    known = {word: number for number, word in enumerate(words)}
    table = np.array([NUM if word.isdigit() else known.get(word, UNK) for word in types], dtype=np.int32)
    for examples in encoded.values():
        for chunk in _chunks(examples):
            chunk[:] = table[chunk]
    return Cloze(words, entities(words), encoded)


def _examples(name: str, split: str, examples: Iterable[Question], ids: Mapping[str, int]) -> Examples:
    passages, questions, answers = array("i"), array("i"), array("i")
    passage_lengths, question_lengths = array("q"), array("q")
    for example in examples:
        passages.extend(map(ids.__getitem__, example.passage))
        passage_lengths.append(len(example.passage))
        questions.extend(map(ids.__getitem__, example.question))
        question_lengths.append(len(example.question))
        answers.append(ids[example.answer])
    if not answers:
        raise DataError(f"No example of {name} is left in its {split} split.\nReplace the data, or use scale=demo.")
    return Examples(
        Sequences(np.asarray(passages), offsets(passage_lengths)),
        Sequences(np.asarray(questions), offsets(question_lengths)),
        np.asarray(answers),
    )


def _chunks(examples: Examples) -> Iterator[np.ndarray]:
    """Yield views of all ids of a split, at most CHUNK at a time."""
    for ids in (examples.passages.tokens, examples.questions.tokens, examples.answers):
        for start in range(0, len(ids), CHUNK):
            yield ids[start : start + CHUNK]


def stored(
    root: Path, name: str, stamp: str, make: Callable[[], tuple[Cloze, Mapping[str, int]]]
) -> tuple[Cloze, dict[str, int]]:
    """Return the encoded questions and counts in ``<root>/cloze``. If they are missing, ``make`` computes them first.

    ``stamp`` identifies the result of ``make``. The number of examples of each split is added to the counts. Tokens are
    memory-mapped.

    Raises: DataError if the result cannot be stored, and whatever ``make`` raises.
    """
    with storing(f"The encoded questions of {name}", root):
        return cached(root / "cloze" / key(__file__, stamp), _read, lambda folder: _write(folder, *make()))


def _write(folder: Path, cloze: Cloze, counts: Mapping[str, int]) -> None:
    for split, examples in cloze.splits.items():
        examples.passages.save(folder, f"{split}_passages")
        examples.questions.save(folder, f"{split}_questions")
        np.save(folder / f"{split}_answers.npy", examples.answers)
    sizes = {split: len(examples) for split, examples in cloze.splits.items()}
    (folder / "words.json").write_text(json.dumps(cloze.words), encoding="utf-8")
    (folder / "counts.json").write_text(json.dumps({**counts, **sizes}), encoding="utf-8")


def _read(folder: Path) -> tuple[Cloze, dict[str, int]]:
    """Return the stored questions and counts.

    Raises: FileNotFoundError, ValueError or EOFError if they are missing or damaged.
    """
    words = json.loads((folder / "words.json").read_text(encoding="utf-8"))
    counts = json.loads((folder / "counts.json").read_text(encoding="utf-8"))
    splits = {
        split: Examples(
            Sequences.load(folder, f"{split}_passages"),
            Sequences.load(folder, f"{split}_questions"),
            np.load(folder / f"{split}_answers.npy"),
        )
        for split in ("train", "valid", "test")
        if split in counts
    }
    return Cloze(words, entities(words), splits), counts
