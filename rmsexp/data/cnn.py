"""Cloze questions on CNN articles (Hermann et al. 2015), from one of two sources.

:func:`cnn` reads DeepMind's question files. :func:`top4` reads published pickles, in which the questions are encoded
and the passages are shortened to four sentences.

Deviation: attentive reader, last id of the published passages and questions
    original: removed from every sequence, whatever it is (attentive-reader:codes/att_reader/attentive_reader.py:36-37)
    ours: removed only if all sequences of a file end in 0
    why: an id that is no mark of the end is a word of the text
    effect: none on files whose sequences all end in 0; not checked, for want of the original files
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rmsexp.data import DataError, Report, Source, UnreadableError
from rmsexp.data.cache import key
from rmsexp.data.cloze import (
    ENTITY,
    NIL,
    PLACEHOLDER,
    RESERVED,
    UNK,
    Cloze,
    Examples,
    Question,
    encode,
    entities,
    split_sentences,
    stored,
)
from rmsexp.data.files import digest_of, missing, read_bytes, read_lines
from rmsexp.data.sequences import Sequences, offsets
from rmsexp.data.unpickle import UnpicklingError, unpickle

SPLITS = {"train": "training", "valid": "validation", "test": "test"}  # our name of a split -> its folder
BLOCKS = {
    1: "URL",
    3: "passage",
    5: "question",
    7: "answer",
    9: "table of entities",
}  # line number in a question file, from 1 -> the part that begins there; all parts but the table have one line
ENTITY_LINE = re.compile(rf"({ENTITY.pattern}):(.*)")
REPORT_FILES = 50_000  # files between two progress reports
REPORT_DAMAGED = 10  # number of damaged files that are reported by name; further ones are only counted
ORIGIN = "Unpack the CNN part of DeepMind's Q&A data (Hermann et al. 2015) into this folder."
TOP4_ORIGIN = (
    "top4 was at http://www.cs.toronto.edu/~rkiros/top4.zip. Unpack it into this folder, or use data.name=cnn "
    "data.sentences=4, which makes similar passages from question files."
)
TOP4_SPLITS = {"train": "train4", "valid": "valid4"}  # our name of a split -> its name in the files
TOP4_FILES = ("dict.pkl", *(f"{split}_{part}.pkl" for split in TOP4_SPLITS.values() for part in ("pass", "qs", "ans")))


def cnn(root: Path, sentences: int | None, damaged: str) -> Source[Cloze]:
    """Return the questions in ``<root>/cnn/questions/{training,validation,test}/*.question``.

    The folder of test files may be missing or empty. A passage is shortened to at most ``sentences`` sentences (see
    :func:`most_related`); None leaves it whole. With ``damaged="refuse"``, ``load`` raises DataError at the first
    damaged file. With ``damaged="skip"``, it leaves damaged files out, reports the first ten by name, and counts the
    rest. The digest covers the names and sizes of the files, not their text, because reading 1.7 GB before every run
    would take minutes. The questions are read again if a file's time of modification changes, too.

    Raises: DataError if there are no files for train or none for valid.
    """
    folder = root / "cnn" / "questions"
    found = _files(folder)
    files = {split: [(name, size) for name, size, _ in entries] for split, entries in found.items()}
    digest = hashlib.sha256(repr(files).encode()).hexdigest()
    name = "CNN" if sentences is None else f"CNN, {sentences} sentences"

    def load(report: Report) -> Cloze:
        def make() -> tuple[Cloze, dict[str, int]]:
            report(f"reading {sum(map(len, files.values())):,} files of {folder} (once)")
            reader = _Reader(sentences, damaged, report)
            cloze = encode(name, {split: reader.questions(folder / SPLITS[split], files[split]) for split in files})
            if reader.damaged > REPORT_DAMAGED:
                report(f"left out: {reader.damaged - REPORT_DAMAGED:,} more")
            return cloze, {"read": reader.read, "damaged": reader.damaged, "unknown": _unknown(cloze), **_lost(cloze)}

        cloze, counts = stored(root, name, key(__file__, found, sentences, damaged), make, report)
        report(
            f"{name}: {counts['read']:,} files read, {counts['damaged']:,} damaged and left out; "
            f"{counts['unknown']:,} unknown words; {_summary(cloze, counts)}"
        )
        return cloze

    return Source(name, digest, False, load)


def _files(folder: Path) -> dict[str, list[tuple[str, int, int]]]:
    """Return name, size in bytes and time of modification of the question files of each split, sorted by name.

    Splits without files are left out.

    Raises: DataError if there are no files for train or none for valid.
    """
    files = {}
    for split, name in SPLITS.items():
        if (folder / name).is_dir():
            with os.scandir(folder / name) as entries:
                stats = ((e.name, e.stat()) for e in entries if e.name.endswith(".question"))
                if found := sorted((file, stat.st_size, stat.st_mtime_ns) for file, stat in stats):
                    files[split] = found
    if absent := [folder / SPLITS[split] / "*.question" for split in ("train", "valid") if split not in files]:
        raise missing("CNN", folder, absent, ORIGIN, folder.parents[1])
    return files


@dataclass
class _Reader:
    """Reads question files, and shortens passages to ``sentences`` sentences unless this is None.

    With ``on_damage="refuse"``, a damaged file raises DataError; with "skip", it is left out. A file that cannot be
    opened, and so may be intact, always raises DataError. ``read`` counts all files, ``damaged`` those left out.
    """

    sentences: int | None
    on_damage: str
    report: Report
    read: int = 0
    damaged: int = 0

    def questions(self, folder: Path, files: Iterable[tuple[str, int]]) -> Iterator[Question]:
        for name, _ in files:
            self.read += 1
            if self.read % REPORT_FILES == 0:
                self.report(f"{self.read:,} files read")
            try:
                question = read_question(folder / name)
            except DataError as error:
                if self.on_damage == "refuse" or isinstance(error, UnreadableError):
                    raise
                self.damaged += 1
                if self.damaged <= REPORT_DAMAGED:
                    self.report(f"left out: {str(error).splitlines()[0]}")
                continue
            if self.sentences is not None:
                passage = most_related(question.passage, question.question, self.sentences)
                question = replace(question, passage=passage)
            yield question


def read_question(path: Path) -> Question:
    """Return the question in one of DeepMind's files, with passage and question in lower case.

    The file has five parts with a blank line between them: a URL, a passage, a question and an answer, of one line
    each, and a table of entities with lines ``@entityN:name``.

    Raises: DataError if the file cannot be read; DataError with the number of the line if a part is missing or
    malformed, if the question does not have exactly one placeholder, if the answer is not in the table, or if the line
    is not UTF-8.
    """
    lines = read_lines(path)
    for number, block in BLOCKS.items():
        if len(lines) < number or not lines[number - 1].strip():
            raise _malformed(path, number, f"the {block} is missing")
        if number > 1 and lines[number - 2].strip():
            raise _malformed(path, number - 1, f"this line must be blank, because the {block} follows")
    passage, question, answer = lines[2].lower().split(), lines[4].lower().split(), lines[6].strip()
    names = {}
    for number, line in enumerate(lines[8:], 9):
        if match := ENTITY_LINE.fullmatch(line.strip()):
            names[match[1]] = match[3]
        elif line.strip():
            raise _malformed(path, number, "not of the form @entityN:name")
    if (gaps := question.count(PLACEHOLDER)) != 1:
        raise _malformed(path, 5, f"the question has {gaps or 'no'} {PLACEHOLDER}, but needs one")
    if answer not in names:
        raise _malformed(path, 7, f"the answer {answer} is not in the table of entities")
    return Question(passage, question, answer, names)


def _malformed(path: Path, line: int, problem: str) -> DataError:
    return DataError(
        f"{path}, line {line}: {problem}.\nReplace the file, or leave out damaged ones with data.damaged=skip."
    )


def most_related(passage: list[str], question: list[str], count: int) -> list[str]:
    """Return the words of the ``count`` sentences of a passage that share the most words with the question.

    The sentences stay in the order of the passage; a passage with fewer sentences is returned whole. A word that occurs
    several times counts once; the placeholder and punctuation are not counted. Of sentences that share equally many
    words, the earlier one is preferred. This is our reading of "identified by a string matching procedure" (Cooijmans
    et al. 2017, appendix).
    """
    words = {word for word in question if word != PLACEHOLDER and any(map(str.isalnum, word))}
    sentences = split_sentences(passage)
    ranked = sorted(range(len(sentences)), key=lambda index: -len(words.intersection(sentences[index])))
    return [word for index in sorted(ranked[:count]) for word in sentences[index]]


def _unknown(cloze: Cloze) -> int:
    """Return the number of UNK tokens in the passages and questions of all splits."""
    parts = [part for examples in cloze.splits.values() for part in (examples.passages, examples.questions)]
    return sum(part.count(UNK) for part in parts)


def _lost(cloze: Cloze) -> dict[str, int]:
    """Return, as ``<split>_lost``, the number of answers of each split that are not in their passages."""
    return {
        f"{split}_lost": sum(answer not in examples.passages[i] for i, answer in enumerate(examples.answers))
        for split, examples in cloze.splits.items()
    }


def _summary(cloze: Cloze, counts: Mapping[str, int]) -> str:
    sizes = (f"{len(examples):,} {split}" for split, examples in cloze.splits.items())
    lost = (f"{counts[f'{split}_lost'] / len(examples):.1%} ({split})" for split, examples in cloze.splits.items())
    tokens = sum(len(part.passages.tokens) + len(part.questions.tokens) for part in cloze.splits.values())
    return (
        f"{', '.join(sizes)} examples of {tokens:,} tokens; a vocabulary of {len(cloze.words):,} with "
        f"{len(cloze.entities):,} entities; answers that are not in the passage: {', '.join(lost)}"
    )


def top4(root: Path) -> Source[Cloze]:
    """Return the published questions with passages of four sentences; there is no test split.

    They are in ``<root>/top4/{dict,train4_pass,train4_qs,train4_ans,valid4_pass,valid4_qs,valid4_ans}.pkl``. As in the
    published model, the vocabulary has one word more than dict.pkl. The id that dict.pkl does not use is named
    ``<unused>``, or, if it is below 4, as in RESERVED. If all sequences of a file end in 0, this 0 is removed. (The
    published code removes the last id, whatever it is.)

    Raises: DataError if a file is missing. ``load`` raises DataError if a file is damaged.
    """
    folder = root / "top4"
    if absent := [folder / name for name in TOP4_FILES if not (folder / name).is_file()]:
        raise missing("CNN top4", folder, absent, TOP4_ORIGIN)
    digest = digest_of(folder / name for name in TOP4_FILES)

    def load(report: Report) -> Cloze:
        def make() -> tuple[Cloze, dict[str, int]]:
            report(f"reading the pickles of {folder} (once)")
            words = _words(folder / "dict.pkl")
            splits = {split: _examples(folder, prefix, len(words)) for split, prefix in TOP4_SPLITS.items()}
            cloze = Cloze(words, entities(words), splits)
            no_entity = sum(int(np.isin(part.answers, cloze.entities, invert=True).sum()) for part in splits.values())
            return cloze, {"no_entity": no_entity, **_lost(cloze)}

        cloze, counts = stored(root, "CNN top4", key(__file__, digest), make, report)
        report(f"CNN top4: {_summary(cloze, counts)}; answers that are not an entity: {counts['no_entity']:,}")
        return cloze

    return Source("CNN top4", digest, False, load)


def _words(path: Path) -> list[str]:
    """Return the vocabulary by id, read from a pickled dictionary of n words to n of the ids from 0 to n.

    Raises: DataError if the file does not have such a dictionary.
    """
    ids = _unpickled(path)
    if not (isinstance(ids, dict) and all(type(word) is str and type(id) is int for word, id in ids.items())):
        raise _damaged(path, "it is not a dictionary of words and their ids")
    size = len(ids) + 1
    names: dict[int, str] = {}
    for word, id in ids.items():
        if not 0 <= id < size:
            raise _damaged(path, f"the id of {word!r} is {id}, but {size - 1:,} words have ids from 0 to {size - 1:,}")
        if names.setdefault(id, word) != word:
            raise _damaged(path, f"{names[id]!r} and {word!r} have the same id, {id}")
    if ENTITY.fullmatch(entity := names.get(UNK, "")):  # every answer to its questions would count as wrong
        raise _damaged(path, f"the id of {entity!r} is {UNK}, which is the unknown word's")
    return [names.get(id, RESERVED[id] if id < len(RESERVED) else "<unused>") for id in range(size)]


def _examples(folder: Path, prefix: str, size: int) -> Examples:
    passages, questions, answers = (_sequences(folder / f"{prefix}_{part}.pkl", size) for part in ("pass", "qs", "ans"))
    if not len(passages) == len(questions) == len(answers):
        raise _damaged(
            folder / f"{prefix}_ans.pkl",
            f"{len(answers):,} answers to {len(questions):,} questions on {len(passages):,} passages",
        )
    if (several := np.flatnonzero(answers.lengths != 1)).size:
        raise _damaged(folder / f"{prefix}_ans.pkl", f"example {several[0]} (from 0) has several answers")
    return Examples(passages, questions, answers.tokens[:])


def _sequences(path: Path, size: int) -> Sequences:
    """Return a pickled list of lists of ids as sequences. If every list ends in 0, remove this last 0 from each.

    Raises: DataError if the file has no such list, an id is not from 0 to ``size`` - 1, or a sequence is empty.
    """
    content = _unpickled(path)
    if not (isinstance(content, list) and content):
        raise _damaged(path, "it is not a list of examples")
    rows = []
    for index, ids in enumerate(content):
        row = ids if isinstance(ids, np.ndarray) else _integers(ids)
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            raise _damaged(path, f"example {index} (from 0) is not a list of ids")
        if row.size and not 0 <= row.min() <= row.max() < size:
            raise _damaged(path, f"example {index} (from 0) has an id outside of 0 to {size - 1:,}")
        rows.append(row.astype(np.int32))
    if all(row.size and row[-1] == NIL for row in rows):
        rows = [row[:-1] for row in rows]
    if empty := [index for index, row in enumerate(rows) if not row.size]:
        raise _damaged(path, f"example {empty[0]} (from 0) is empty")
    return Sequences(np.concatenate(rows), offsets(map(len, rows)))


def _integers(values: Any) -> np.ndarray:
    """Return a list of integers as an array, int64 of shape (number,), or an array without axes if it is no such list.

    The list is checked first: from other lists, numpy may make an array that does not fit into the memory.
    """
    listed = isinstance(values, list | tuple) and all(isinstance(value, int | np.integer) for value in values)
    try:
        return np.array(values if listed else 0, dtype=np.int64)
    except OverflowError:
        return np.array(0)


def _unpickled(path: Path) -> Any:
    try:
        return unpickle(read_bytes(path))
    except UnpicklingError as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, problem: str) -> DataError:
    return DataError(f"{path} is damaged: {problem}.\nReplace the file.")
