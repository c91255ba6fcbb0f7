"""Plain text for language models: synthetic sentences, your own files, LAMBADA's passages, or WikiText-103."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from rmsexp.data import DataError
from rmsexp.data.download import hub_files, hub_rows
from rmsexp.data.files import digest_of, digest_of_contents, read_bytes
from rmsexp.data.lambada import files as lambada_files
from rmsexp.data.synthetic import phrases

SPLITS = ("train", "valid", "test")
WIKITEXT = (  # repository on the Hugging Face hub, revision, config
    "Salesforce/wikitext",
    "b08601e04326c79dfdd32d625aee71d232d685c3",
    "wikitext-103-raw-v1",
)


@dataclass(frozen=True)
class PlainText:
    """Text in the splits train, valid and test.

    ``splits`` has functions that return the bytes of a split; they raise DataError if a file cannot be read or is
    empty. ``digest`` is a SHA-256, in hexadecimal, that identifies the content. ``builtin`` is true if this package
    generates the text.
    """

    name: str
    digest: str
    builtin: bool
    splits: Mapping[str, Callable[[], bytes]]


def sentences(n_train: int = 6000, n_valid: int = 200, n_test: int = 200) -> PlainText:
    """Return the English sentences of the synthetic corpus for translation, one per line."""
    corpus = phrases.phrases(n_train, n_valid, n_test)
    texts = {split: "".join(f"{line}\n" for line in corpus.text(split)[0]).encode() for split in SPLITS}
    digest = hashlib.sha256(repr(texts).encode()).hexdigest()
    return PlainText("sentences", digest, True, {split: partial(texts.__getitem__, split) for split in SPLITS})


def files(train: str, valid: str, test: str) -> PlainText:
    """Return the text of three files of the user. The name is that of train's file.

    Raises: DataError if a file cannot be read.
    """
    paths = dict(zip(SPLITS, map(Path, (train, valid, test)), strict=True))
    splits = {split: partial(_read, path) for split, path in paths.items()}
    return PlainText(paths["train"].name, digest_of_contents(paths.values()), False, splits)


def lambada(root: Path, held_out: int, rest: bool) -> PlainText:
    """Return the passages in ``<root>/lambada/lambada_{development,test}_plain_text.txt``, one per line.

    The ``held_out`` last passages of development are the validation text, and the others the training text. The
    ``held_out`` first passages of test are the test text. With ``rest``, the other passages of test are training text,
    too.

    Raises: DataError if a file is missing, empty, or cannot be read; ValueError if ``held_out`` leaves no training
    passage, or if there are fewer test passages.
    """
    paths = lambada_files(root)
    development, test = (_read(path).removesuffix(b"\n").split(b"\n") for path in paths)
    if held_out >= len(development):
        raise ValueError(f"data.held_out={held_out} leaves none of the {len(development)} training passages")
    if held_out > len(test):
        raise ValueError(f"data.held_out={held_out} is more than the {len(test)} test passages")
    passages = {"train": development[:-held_out], "valid": development[-held_out:], "test": test[:held_out]}
    if rest:
        passages["train"] += test[held_out:]
    texts = {split: b"".join(line + b"\n" for line in lines) for split, lines in passages.items()}
    content = f"{digest_of(paths)}, held out {held_out}{', and the rest of test' * rest}"
    digest = hashlib.sha256(content.encode()).hexdigest()
    return PlainText("LAMBADA", digest, False, {split: partial(texts.__getitem__, split) for split in SPLITS})


def wikitext103(root: Path) -> PlainText:
    """Return WikiText-103 (Merity et al. 2017), raw: Wikipedia articles, 540 MB of training text.

    It is in ``<root>/wikitext103/wikitext-103-raw-v1/*.parquet``, as on the Hugging Face hub, from which missing files
    are downloaded.

    Raises: DataError if the download fails, or if a file cannot be read.
    """
    files = hub_files(
        "WikiText-103",
        root / "wikitext103",
        *WIKITEXT,
        ("train", "validation", "test"),
        "task=language_model scale=large",
    )
    splits = {split: partial(_hub_text, paths) for split, paths in zip(SPLITS, files, strict=True)}
    return PlainText("WikiText-103", digest_of(chain.from_iterable(files)), False, splits)


def _hub_text(paths: Sequence[Path]) -> bytes:
    return b"".join(row["text"].removesuffix("\n").encode() + b"\n" for row in hub_rows(paths))


def _read(path: Path) -> bytes:
    content = read_bytes(path)
    if not content or b"\0" in content[:1024]:  # as in compressed files and in text in UTF-16
        raise DataError(f"{path} is {'no plain text' if content else 'empty'}.\nReplace the file.")
    return content
