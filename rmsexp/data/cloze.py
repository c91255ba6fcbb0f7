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


@dataclass(frozen=True)
class Question:
    """A question with its passage and answer, as lower-case words.

    ``entities`` maps each ``@entityN`` of this question to the name that it stands for.
    """

    passage: list[str]
    question: list[str]  # contains PLACEHOLDER
    answer: str
    entities: Mapping[str, str]


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


def lost(cloze: Cloze) -> dict[str, int]:
    """Return, as ``<split>_lost``, the number of answers of each split that are not in their passages."""
    return {
        f"{split}_lost": sum(answer not in examples.passages[i] for i, answer in enumerate(examples.answers))
        for split, examples in cloze.splits.items()
    }


def summary(cloze: Cloze, counts: Mapping[str, int]) -> str:
    """Return a sentence about the questions. ``counts`` has the numbers of :func:`lost`."""
    sizes = (f"{len(examples):,} {split}" for split, examples in cloze.splits.items())
    shares = (f"{counts[f'{split}_lost'] / len(examples):.1%} ({split})" for split, examples in cloze.splits.items())
    tokens = sum(len(part.passages.tokens) + len(part.questions.tokens) for part in cloze.splits.values())
    return (
        f"{', '.join(sizes)} examples of {tokens:,} tokens; a vocabulary of {len(cloze.words):,} with "
        f"{len(cloze.entities):,} entities; answers that are not in the passage: {', '.join(shares)}"
    )


def stored(root: Path, stamp: str, make: Callable[[], tuple[Cloze, Mapping[str, int]]]) -> tuple[Cloze, dict[str, int]]:
    """Return the encoded questions and counts that are stored in ``<root>/cloze``.

    If they are missing, call ``make``, which returns (questions, counts), and store its result first. The number of
    examples of each split is added to the stored counts. ``stamp`` identifies the result of ``make``. The tokens of
    passages and questions are memory-mapped.

    Raises: DataError if the result cannot be stored, and whatever ``make`` raises.
    """
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
