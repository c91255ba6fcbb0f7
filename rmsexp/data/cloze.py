"""Cloze questions as token ids: a passage, a question with a gap, and the word that fills the gap.

They are read from DeepMind's files of questions on CNN articles (Hermann et al. 2015), or made from LAMBADA (Paperno
et al. 2016), a small substitute for these.

Deviation: attentive reader, passages
    original: the published questions ("top4"), whose passages were shortened to at most four sentences
    ours: the four sentences that share the most words with the question; data.sentences=null keeps all
    why: the published questions are no longer offered, and their sentences were chosen by a "string matching
        procedure" that is not described further
    effect: not measured
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rmsexp.data import DataError, Report, Source, sequences
from rmsexp.data.files import cached, digest_of, key, read_bytes, read_lines, require
from rmsexp.data.sequences import Sequences

NIL, EOS, UNK, NUM = range(4)  # the first ids: padding, end (not used here), an unknown word, a number
RESERVED = ("<nil>", "<eos>", "<unk>", "<num>")  # the words with these four ids
PLACEHOLDER = "@placeholder"  # the word that stands for the gap in a question
ENTITY = re.compile(r"@entity(0|[1-9]\d{0,4})")  # a word that stands for an anonymised name: @entity0 to @entity99999
SENTENCE_ENDS = frozenset(".?!")
CNN_SPLITS = {"train": "training", "valid": "validation", "test": "test"}  # our name of a split -> its folder
CNN_ORIGIN = "Unpack the CNN part of DeepMind's Q&A data (Hermann et al. 2015) into this folder."
CLOSING_QUOTES = ("''", "'")  # in LAMBADA
NEAR = (3, 6, 12)  # each training passage is cut to at most 2 * near + 1 words, once for each of these values of near
LAMBADA_ORIGIN = (
    "The files of Paperno et al. (2016) are on Zenodo (record 2630551, CC BY 4.0). Put them into this folder."
)


@dataclass(frozen=True)
class Examples:
    """The questions of a split, as word ids. ``answers`` is int32 of shape (example,). No sequence is empty."""

    passages: Sequences
    questions: Sequences
    answers: np.ndarray

    @classmethod
    def from_lists(cls, rows: Iterable[Iterable[Any]]) -> Examples:
        """Return the questions whose passages, questions and answers (of one id) are the columns of ``rows``."""
        passages, questions, answers = map(Sequences.from_lists, zip(*rows, strict=True))
        return cls(passages, questions, answers.tokens)

    def __len__(self) -> int:
        return len(self.answers)

    def first(self, count: int | None) -> Examples:
        """Return the first ``count`` questions, or all if there are fewer or ``count`` is None."""
        answers = self.answers[:count]
        return Examples(self.passages.first(len(answers)), self.questions.first(len(answers)), answers)


@dataclass(frozen=True)
class Cloze:
    """An encoded data set. ``words[i]`` is the word with id i. ``splits``: train, valid and, if there is one, test."""

    words: list[str]
    splits: Mapping[str, Examples]

    @cached_property
    def entities(self) -> np.ndarray:
        """The ids of the words ``@entityN``, which training may permute, int64 of shape (entity,)."""
        return np.array([number for number, word in enumerate(self.words) if ENTITY.fullmatch(word)], dtype=np.int64)


class Question(NamedTuple):
    """A question with its passage and answer, as lower-case words. ``question`` contains PLACEHOLDER."""

    passage: list[str]
    question: list[str]
    answer: str


def split_sentences(words: Iterable[str], closing: Collection[str] = ()) -> list[list[str]]:
    """Split words into sentences, each with its end, a word of SENTENCE_ENDS, and words of ``closing`` that follow."""
    sentences: list[list[str]] = []
    ended = True
    for word in words:
        if ended and not (sentences and word in closing):
            sentences.append([])
            ended = False
        sentences[-1].append(word)
        ended = ended or word in SENTENCE_ENDS
    return sentences


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

    Besides the vocabulary, encoding takes about twelve bytes of memory per token.

    Raises: DataError if a split has no examples, and whatever the iterables in ``splits`` raise.
    """
    ids: defaultdict[str, int] = defaultdict()
    # The questions are read only once, so words first get temporary ids, in the order in which they appear.
    ids.default_factory = ids.__len__
    encoded = {
        split: [
            [array("i", map(ids.__getitem__, text)) for text in (passage, question, [answer])]
            for passage, question, answer in questions
        ]
        for split, questions in splits.items()
    }
    for split, rows in encoded.items():
        if not rows:
            raise DataError(f"No example of {name} is left in its {split} split.\nReplace the data, or use scale=demo.")
    highest = max((int(match[1]) for match in map(ENTITY.fullmatch, ids) if match), default=-1)
    always_known = dict.fromkeys([PLACEHOLDER, *(f"@entity{number}" for number in range(highest + 1))])
    types = list(ids | always_known)
    counts = Counter(chain.from_iterable(chain.from_iterable(encoded["train"])))
    words = list(RESERVED)
    for index in sorted(range(len(types)), key=lambda index: -counts[index]):
        word = types[index]
        if word in always_known or (counts[index] > 1 and not word.isdigit() and word not in RESERVED):
            words.append(word)
    known = {word: number for number, word in enumerate(words)}
    table = np.array([NUM if word.isdigit() else known.get(word, UNK) for word in types], dtype=np.int32)
    final = {
        split: Examples.from_lists([table[np.asarray(text)] for text in row] for row in rows)
        for split, rows in encoded.items()
    }
    return Cloze(words, final)


def stored(root: Path, name: str, digest: str, stamp: str, make: Callable[[Report], Cloze]) -> Source[Cloze]:
    """Return the data set ``name``, whose encoded questions are stored in ``<root>/cloze``, memory-mapped.

    ``load`` reports their numbers. If they are missing, it stores the result of ``make``, which ``stamp`` identifies.
    """

    def load(report: Report) -> Cloze:
        folder = root / "cloze" / key(__file__, key(sequences.__file__), stamp)
        cloze = cached(folder, _read, lambda folder: _write(folder, make(report)))
        sizes = ", ".join(f"{len(examples):,} {split}" for split, examples in cloze.splits.items())
        report(f"{name}: {sizes} examples; {len(cloze.words):,} words, {len(cloze.entities):,} of them entities")
        return cloze

    return Source(name, digest, False, load)


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
    return Cloze(content["words"], splits)


def cnn(root: Path, sentences: int | None, damaged: str) -> Source[Cloze]:
    """Return the questions in ``<root>/cnn/questions/{training,validation,test}/*.question``; test may be missing.

    A passage is shortened to at most ``sentences`` sentences (see :func:`most_related`); None leaves it whole. With
    ``damaged="refuse"``, ``load`` raises DataError at the first damaged file; with "skip", it leaves damaged files out
    and reports them. The digest covers the names and sizes of the files, not their text, because reading 1.7 GB before
    every run would take minutes. Encoded questions are stored, and made again if a file's name, size or time changes.

    Raises: DataError if there are no files for train or none for valid; OSError if a folder cannot be read.
    """
    folder, found = root / "cnn" / "questions", dict[str, list[tuple[str, int, int]]]()
    for split, split_folder in CNN_SPLITS.items():
        # unlike glob, iterdir raises if the folder cannot be read
        paths = (folder / split_folder).iterdir() if (folder / split_folder).is_dir() else ()
        stats = ((path.name, path.stat()) for path in paths if path.name.endswith(".question"))
        if listed := sorted((file, stat.st_size, stat.st_mtime_ns) for file, stat in stats):
            found[split] = listed
    absent = (folder / CNN_SPLITS[split] / "*.question" for split in ("train", "valid") if split not in found)
    require("CNN", folder, absent, CNN_ORIGIN)
    files = {split: [(file, size) for file, size, _ in listed] for split, listed in found.items()}
    name = "CNN" if sentences is None else f"CNN, {sentences} sentences"

    def make(report: Report) -> Cloze:
        report(f"reading {sum(map(len, files.values())):,} files of {folder} (once)")
        splits = {
            split: _questions([folder / CNN_SPLITS[split] / file for file, _ in entries], sentences, damaged, report)
            for split, entries in files.items()
        }
        return encode(name, splits)

    digest = hashlib.sha256(repr(files).encode()).hexdigest()
    return stored(root, name, digest, key(__file__, found, sentences, damaged), make)


def _questions(paths: Iterable[Path], sentences: int | None, damaged: str, report: Report) -> Iterator[Question]:
    for path in paths:
        content = read_bytes(path)
        try:
            question = parsed(content.decode())
        except ValueError as error:
            if damaged == "refuse":
                raise DataError(
                    f"{path} is damaged: {error}.\nReplace the file, or leave out damaged ones with data.damaged=skip."
                ) from None
            report(f"left out: {path} ({error})")
            continue
        if sentences is not None:
            passage = most_related(question.passage, question.question, sentences)
            question = question._replace(passage=passage)
        yield question


def parsed(text: str) -> Question:
    """Return the question in the text of one of DeepMind's files, with passage and question in lower case.

    Its five parts have a blank line between them: a URL, a passage, a question, an answer, and a table of entities with
    lines ``@entityN:name``.

    Raises: ValueError if a part is missing or malformed, if the question does not have exactly one placeholder, or if
    the answer is not in the table.
    """
    parts = [part.strip() for part in text.replace("\r\n", "\n").split("\n\n", 4)]
    if len(parts) < 5 or not all(parts):
        raise ValueError("it does not have a URL, a passage, a question, an answer and a table of entities")
    _, passage, question, answer, table = parts
    names = [line.strip().partition(":")[0] for line in table.split("\n")]
    if wrong := [name for name in names if not ENTITY.fullmatch(name)]:
        raise ValueError(f"{wrong[0]!r} in the table of entities is not of the form @entityN")
    words = question.lower().split()
    if (gaps := words.count(PLACEHOLDER)) != 1:
        raise ValueError(f"the question has {gaps or 'no'} {PLACEHOLDER}, but needs one")
    if answer not in names:
        raise ValueError(f"the answer {answer} is not in the table of entities")
    return Question(passage.lower().split(), words, answer)


def most_related(passage: list[str], question: list[str], count: int) -> list[str]:
    """Return the words of the ``count`` sentences of a passage that share the most words with the question.

    The sentences stay in the order of the passage; a passage with fewer sentences is returned whole. A word that occurs
    several times counts once; the placeholder and punctuation do not count. Ties go to the earlier
    sentence. This is our reading of "identified by a string matching procedure" (Cooijmans et al. 2017, appendix).
    """
    words = {word for word in question if word != PLACEHOLDER and any(map(str.isalnum, word))}
    sentences = split_sentences(passage)
    ranked = sorted(range(len(sentences)), key=lambda index: -len(words.intersection(sentences[index])))
    return [word for index in sorted(ranked[:count]) for word in sentences[index]]


def lambada_files(root: Path) -> list[Path]:
    """Return LAMBADA's files of development and of test below ``root``. Raises: DataError if one is missing."""
    folder = root / "lambada"
    paths = [folder / f"lambada_{name}_plain_text.txt" for name in ("development", "test")]
    require("LAMBADA", folder, paths, LAMBADA_ORIGIN)
    return paths


def lambada(root: Path, vocabulary: int, entities: int, validation: int | None = None) -> Source[Cloze]:
    """Return the questions in ``<root>/lambada/lambada_{development,test}_plain_text.txt``.

    The last word of a line is the answer, the rest of the last sentence is the question, and the text before this
    sentence is the passage. Questions whose answer is not in the passage are left out. We train on development and
    validate on test, because LAMBADA's own training text has no questions. With ``validation``, we validate on that
    number of development questions, the last ones, and test on test.

    Each training passage is cut to three lengths around the answer (see NEAR), so a training question gives three
    examples: from a few thousand whole passages, a model does not learn within minutes that answers are words of the
    passage. Passages of other splits are whole.

    Words that consist of digits become NUM. Of the other words, the ``vocabulary`` most frequent ones of the whole
    training questions (passages, questions and answers) are kept if they occur at least twice. Of a passage's remaining
    words, the ``entities`` most frequent ones are anonymised as in CNN. The rest become UNK, like words that occur once
    in the shortened training text (:func:`encode`).

    Raises: DataError if a file is missing. ``load`` raises DataError if a line is malformed or no question is left, and
    ValueError if ``validation`` leaves no training question.
    """
    paths = lambada_files(root)
    digest = digest_of(paths)
    if validation is not None:
        digest = hashlib.sha256(f"{digest}, validation {validation}".encode()).hexdigest()

    def make(_: Report) -> Cloze:
        development, test = (
            [example for example in read_questions(path) if example.answer in example.passage] for path in paths
        )
        whole = {"train": development, "valid": test}
        if validation is not None:
            if validation >= len(development):
                counted = f"the {len(development)} training questions"
                raise ValueError(f"data.validation={validation} leaves none of {counted}")
            whole = {"train": development[:-validation], "valid": development[-validation:], "test": test}
        texts = chain.from_iterable((*passage, *gap, answer) for passage, gap, answer in whole["train"])
        counts = Counter(word for word in texts if not word.isdigit() and word != PLACEHOLDER)
        frequent = {word for word, count in counts.most_common(vocabulary) if count > 1}  # of equal ones, the earlier
        cut = [shortened(example, near, place) for place, example in enumerate(whole["train"]) for near in NEAR]
        splits = {
            split: [anonymised(example, frequent, entities) for example in examples]
            for split, examples in (whole | {"train": cut}).items()
        }
        return encode("LAMBADA", splits)

    return stored(root, "LAMBADA", digest, key(__file__, digest, vocabulary, entities), make)


def read_questions(path: Path) -> list[Question]:
    """Return the question of each line of a file, in lower case, with its whole passage, which may lack the answer.

    Raises: DataError if the file cannot be read; DataError with the number of the line if a line has fewer than two
    words or is not UTF-8.
    """
    questions = []
    for number, line in enumerate(read_lines(path), 1):
        words = line.lower().split()
        if len(words) < 2:
            raise DataError(
                f"{path}, line {number}: {'only one word' if words else 'empty'}.\n"
                "A line needs a text and the word that follows it; repair or delete the line."
            )
        *passage, question = split_sentences([*words[:-1], PLACEHOLDER], CLOSING_QUOTES)
        questions.append(Question([word for sentence in passage for word in sentence], question, words[-1]))
    return questions


def shortened(question: Question, near: int, place: int) -> Question:
    """Return the question with its passage cut to at most n = ``2 near + 1`` words.

    The last occurrence of the answer is at the position ``place`` modulo n, as far as the ends of the passage allow.
    """
    length = 2 * near + 1
    last = len(question.passage) - 1 - question.passage[::-1].index(question.answer)
    start = max(0, min(last - place % length, len(question.passage) - length))
    return question._replace(passage=question.passage[start : start + length])


def anonymised(question: Question, frequent: Collection[str], entities: int) -> Question:
    """Return the question with rare words, in passage, question and answer, replaced by ``@entityN`` or "<unk>".

    Rare words are those that are neither in ``frequent`` nor numbers. The ``entities`` rare words that occur most often
    in the passage become ``@entity0``, ``@entity1`` and so on, numbered by first appearance, and the others "<unk>".
    """
    rare = Counter(word for word in question.passage if word not in frequent and not word.isdigit())
    chosen = {word for word, _ in rare.most_common(entities)}  # of equally frequent ones, those that appear first
    names = {word: f"@entity{number}" for number, word in enumerate(word for word in rare if word in chosen)}

    def anonymise(word: str) -> str:
        unchanged = word in frequent or word.isdigit() or word == PLACEHOLDER
        return word if unchanged else names.get(word, RESERVED[UNK])

    return Question(
        [anonymise(word) for word in question.passage],
        [anonymise(word) for word in question.question],
        anonymise(question.answer),
    )
