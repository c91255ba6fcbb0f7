"""Cloze questions on CNN articles (Hermann et al. 2015), read from DeepMind's question files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from rmsexp.data import DataError, Report, Source
from rmsexp.data.cache import key
from rmsexp.data.cloze import ENTITY, PLACEHOLDER, Cloze, Question, encode, split_sentences, stored
from rmsexp.data.files import missing, read_bytes

SPLITS = {"train": "training", "valid": "validation", "test": "test"}  # our name of a split -> its folder
ORIGIN = "Unpack the CNN part of DeepMind's Q&A data (Hermann et al. 2015) into this folder."


def cnn(root: Path, sentences: int | None, damaged: str) -> Source[Cloze]:
    """Return the questions in ``<root>/cnn/questions/{training,validation,test}/*.question``.

    The folder of test files may be missing or empty. A passage is shortened to at most ``sentences`` sentences (see
    :func:`most_related`); None leaves it whole. With ``damaged="refuse"``, ``load`` raises DataError at the first
    damaged file. With ``damaged="skip"``, it leaves damaged files out and reports them. The digest covers the names and
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
        def make() -> Cloze:
            report(f"reading {sum(map(len, files.values())):,} files of {folder} (once)")
            splits = {
                split: _questions([folder / SPLITS[split] / file for file, _ in entries], sentences, damaged, report)
                for split, entries in files.items()
            }
            return encode(name, splits)

        return stored(root, name, key(__file__, found, sentences, damaged), make, report)

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

    The text has five parts with a blank line between them: a URL, a passage, a question and an answer, of one line
    each, and a table of entities with lines ``@entityN:name``.

    Raises: ValueError if a part is missing or malformed, if the question does not have exactly one placeholder, or if
    the answer is not in the table.
    """
    parts = [part.strip() for part in text.split("\n\n", 4)]
    if len(parts) < 5 or not all(parts):
        raise ValueError("it does not have a URL, a passage, a question, an answer and a table of entities")
    _, passage, question, answer, table = parts
    names = [line.strip().partition(":")[0] for line in table.splitlines()]
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
    several times counts once; the placeholder and punctuation are not counted. Of sentences that share equally many
    words, the earlier one is preferred. This is our reading of "identified by a string matching procedure" (Cooijmans
    et al. 2017, appendix).
    """
    words = {word for word in question if word != PLACEHOLDER and any(map(str.isalnum, word))}
    sentences = split_sentences(passage)
    ranked = sorted(range(len(sentences)), key=lambda index: -len(words.intersection(sentences[index])))
    return [word for index in sorted(ranked[:count]) for word in sentences[index]]
