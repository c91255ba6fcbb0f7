"""Cloze questions on CNN articles (Hermann et al. 2015), read from DeepMind's question files."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from rmsexp.data import DataError, Report, Source
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
from rmsexp.data.files import missing, read_bytes

SPLITS = {"train": "training", "valid": "validation", "test": "test"}  # our name of a split -> its folder
ENTITY_LINE = re.compile(rf"({ENTITY.pattern}):(.*)")
ORIGIN = "Unpack the CNN part of DeepMind's Q&A data (Hermann et al. 2015) into this folder."


def cnn(root: Path, sentences: int | None, damaged: str) -> Source[Cloze]:
    """Return the questions in ``<root>/cnn/questions/{training,validation,test}/*.question``.

    The folder of test files may be missing or empty. A passage is shortened to at most ``sentences`` sentences (see
    :func:`most_related`); None leaves it whole. With ``damaged="refuse"``, ``load`` raises DataError at the first
    damaged file. With ``damaged="skip"``, it leaves damaged files out and counts them. The digest covers the names and
    sizes of the files, not their text, because reading 1.7 GB before every run would take minutes. The questions are
    read again if a file's time of modification changes, too.

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
            counts = Counter[str]()
            splits = {
                split: _questions([folder / SPLITS[split] / file for file, _ in entries], sentences, damaged, counts)
                for split, entries in files.items()
            }
            cloze = encode(name, splits)
            return cloze, {**counts, "unknown": _unknown(cloze), **lost(cloze)}

        cloze, counts = stored(root, key(__file__, found, sentences, damaged), make)
        report(
            f"{name}: {counts['read']:,} files read, {counts.get('damaged', 0):,} damaged and left out; "
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
        raise missing("CNN", folder, absent, ORIGIN)
    return files


def _questions(paths: Iterable[Path], sentences: int | None, damaged: str, counts: Counter[str]) -> Iterator[Question]:
    """Yield the questions of files, and update ``counts``: ``read`` counts all files, ``damaged`` those left out."""
    for path in paths:
        counts["read"] += 1
        content = read_bytes(path)
        try:
            question = parsed(content.decode())
        except ValueError as error:
            if damaged == "refuse":
                raise DataError(
                    f"{path} is damaged: {error}.\nReplace the file, or leave out damaged ones with data.damaged=skip."
                ) from None
            counts["damaged"] += 1
            continue
        if sentences is not None:
            passage = most_related(question.passage, question.question, sentences)
            question = replace(question, passage=passage)
        yield question


def parsed(text: str) -> Question:
    """Return the question in the text of one of DeepMind's files, with passage and question in lower case.

    The text has five parts with a blank line between them: a URL, a passage, a question and an answer, of one line
    each, and a table of entities with lines ``@entityN:name``.

    Raises: ValueError if a part is missing or malformed, if the question does not have exactly one placeholder, or if
    the answer is not in the table.
    """
    parts = [part.strip() for part in text.split("\n\n", 4)]
    if len(parts) < 5 or not all(parts):
        raise ValueError("it does not have a URL, a passage, a question, an answer and a table of entities")
    _, passage, question, answer, table = parts
    names = {}
    for line in table.splitlines():
        match = ENTITY_LINE.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"{line!r} is not of the form @entityN:name")
        names[match[1]] = match[3]
    words = question.lower().split()
    if (gaps := words.count(PLACEHOLDER)) != 1:
        raise ValueError(f"the question has {gaps or 'no'} {PLACEHOLDER}, but needs one")
    if answer not in names:
        raise ValueError(f"the answer {answer} is not in the table of entities")
    return Question(passage.lower().split(), words, answer, names)


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
