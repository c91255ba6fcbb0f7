"""Cloze questions on CNN articles (Hermann et al. 2015), read from DeepMind's question files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rmsexp.data import DataError, Report, Source, UnreadableError
from rmsexp.data.cache import key
from rmsexp.data.cloze import (
    ENTITY,
    PLACEHOLDER,
    UNK,
    Cloze,
    Question,
    encode,
    lost,
    split_sentences,
    stored,
    summary,
)
from rmsexp.data.files import missing, read_lines

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
            return cloze, {"read": reader.read, "damaged": reader.damaged, "unknown": _unknown(cloze), **lost(cloze)}

        cloze, counts = stored(root, key(__file__, found, sentences, damaged), make, report)
        report(
            f"{name}: {counts['read']:,} files read, {counts['damaged']:,} damaged and left out; "
            f"{counts['unknown']:,} unknown words; {summary(cloze, counts)}"
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
