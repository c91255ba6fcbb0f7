"""Cloze questions as token ids: a passage, a question with a gap, and the word that fills the gap."""

from __future__ import annotations

import json
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rmsexp.data import DataError, Report, sequences
from rmsexp.data.cache import cached, key
from rmsexp.data.sequences import Sequences, offsets

NIL, EOS, UNK, NUM = range(4)  # the first ids: padding, end (not used here), an unknown word, a number
RESERVED = ("<nil>", "<eos>", "<unk>", "<num>")  # the words with these four ids
PLACEHOLDER = "@placeholder"  # the word that stands for the gap in a question
ENTITY = re.compile(r"@entity(0|[1-9]\d{0,4})")  # a word that stands for an anonymised name: @entity0 to @entity99999
SENTENCE_ENDS = frozenset(".?!")
CHUNK = 1_000_000  # tokens counted or renumbered at a time: numpy copies int32 indices to int64, which takes memory


@dataclass(frozen=True)
class Examples:
    """The questions of a split, as word ids.

    Passage i, question i and ``answers[i]`` belong together. ``answers`` is int32 of shape (example,). No passage or
    question is empty.
    """

    passages: Sequences
    questions: Sequences
    answers: np.ndarray

    def __len__(self) -> int:
        return len(self.answers)

    def first(self, count: int | None) -> Examples:
        """Return the first ``count`` questions, or all if there are fewer or ``count`` is None."""
        if count is None:
            return self
        return Examples(self.passages.first(count), self.questions.first(count), self.answers[:count])


@dataclass(frozen=True)
class Cloze:
    """An encoded data set.

    ``words[i]`` is the word with id i. ``entities``, int64 of shape (entity,), has the ids of the words ``@entityN``,
    which training may permute. ``splits`` has train, valid and, if the data set has it, test.
    """

    words: list[str]
    entities: np.ndarray
    splits: Mapping[str, Examples]


class Question(NamedTuple):
    """A question with its passage and answer, as lower-case words. ``question`` contains PLACEHOLDER."""

    passage: list[str]
    question: list[str]
    answer: str


def split_sentences(words: Iterable[str], closing: Collection[str] = ()) -> list[list[str]]:
    """Split words into sentences.

    A sentence ends with one of SENTENCE_ENDS and any words of ``closing`` that follow it; the last sentence may also
    end without them.
    """
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
    """Return the ids of the words ``@entityN`` in a vocabulary given by id, int64 of shape (entity,)."""
    return np.array([number for number, word in enumerate(words) if ENTITY.fullmatch(word)], dtype=np.int64)


def encode(name: str, splits: Mapping[str, Iterable[Question]]) -> Cloze:
    """Encode questions as ids. ``name`` is the data set's name, for messages.

    The vocabulary is made as in the published ``preprocess.py`` and ``preprocess_shortend.py``
    (cooijmanstim/Attentive_reader):

    - A word that consists of digits becomes NUM.
    - A word of RESERVED gets its reserved id.
    - PLACEHOLDER, and ``@entity0`` to the highest ``@entityN`` of any split, are always in the vocabulary.
    - Of the other words, those that occur at least twice in the training text (passages, questions and answers) are in
      the vocabulary, and the rest become UNK.
    - Ids from 4 on are given by falling frequency in the training text; equally frequent words are in the order of
      their first appearance in the data.

    Besides the vocabulary, encoding takes four bytes of memory per token.

    Raises: DataError if a split has no examples, and whatever the iterables in ``splits`` raise.
    """
    ids: defaultdict[str, int] = defaultdict()
    # The questions are read only once, so words first get temporary ids, in the order in which they appear.
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
    """Yield all ids of a split (passages, questions and answers), as views of at most CHUNK ids."""
    for ids in (examples.passages.tokens, examples.questions.tokens, examples.answers):
        for start in range(0, len(ids), CHUNK):
            yield ids[start : start + CHUNK]


def stored(root: Path, name: str, stamp: str, make: Callable[[], Cloze], report: Report) -> Cloze:
    """Return the encoded questions that are stored in ``<root>/cloze``, and report their numbers.

    If they are missing, call ``make`` and store its result first. ``name`` is the data set's name, and ``stamp``
    identifies the result of ``make``. The tokens of passages and questions are memory-mapped.

    Raises: DataError if the result cannot be stored, and whatever ``make`` raises.
    """
    cloze = cached(
        root / "cloze" / key(__file__, key(sequences.__file__), stamp), _read, lambda folder: _write(folder, make())
    )
    sizes = ", ".join(f"{len(examples):,} {split}" for split, examples in cloze.splits.items())
    report(f"{name}: {sizes} examples; {len(cloze.words):,} words, {len(cloze.entities):,} of them entities")
    return cloze


def _write(folder: Path, cloze: Cloze) -> None:
    for split, examples in cloze.splits.items():
        examples.passages.save(folder, f"{split}_passages")
        examples.questions.save(folder, f"{split}_questions")
        np.save(folder / f"{split}_answers.npy", examples.answers)
    content = {"words": cloze.words, "splits": list(cloze.splits)}
    (folder / "content.json").write_text(json.dumps(content), encoding="utf-8")


def _read(folder: Path) -> Cloze:
    content = json.loads((folder / "content.json").read_text(encoding="utf-8"))
    splits = {
        split: Examples(
            Sequences.load(folder, f"{split}_passages"),
            Sequences.load(folder, f"{split}_questions"),
            np.load(folder / f"{split}_answers.npy"),
        )
        for split in content["splits"]
    }
    return Cloze(content["words"], entities(content["words"]), splits)
