"""Plain text for language models: synthetic sentences, your own files, LAMBADA's passages, or WikiText-103."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rmsexp.data import DataError, Report
from rmsexp.data.download import provide
from rmsexp.data.files import check_text, digest_of, digest_of_contents, read_bytes
from rmsexp.data.lambada import files as lambada_files
from rmsexp.data.synthetic import phrases

SPLITS = ("train", "valid", "test")
WIKITEXT = "Salesforce/wikitext"  # data set on the Hugging Face hub
WIKITEXT_CONFIG = "wikitext-103-raw-v1"
# our name -> the name on the hub, and the number of lines
WIKITEXT_SPLITS = {"train": ("train", 1_801_350), "valid": ("validation", 3_760), "test": ("test", 4_358)}


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


def wikitext103(root: Path, report: Report) -> PlainText:
    """Return WikiText-103 (Merity et al. 2017), raw: Wikipedia articles, 540 MB of training text.

    The text is in ``<root>/wikitext103/{train,valid,test}.txt``. Missing files are downloaded with the ``datasets``
    library.

    Raises: DataError if the download fails, or if a file cannot be read or has another number of lines.
    """
    paths = {split: root / "wikitext103" / f"{split}.txt" for split in SPLITS}
    download = partial(_download_wikitext103, report)
    provide("WikiText-103", list(paths.values()), download, WIKITEXT, "task=language_model scale=large", root)
    splits = {split: partial(_read, path, WIKITEXT_SPLITS[split][1]) for split, path in paths.items()}
    return PlainText("WikiText-103", digest_of(paths.values()), False, splits)


def _read(path: Path, lines: int | None = None) -> bytes:
    content = read_bytes(path)
    check_text(path, content)
    if not content:
        raise DataError(f"{path} is empty.\nReplace the file.")
    if lines is not None and (count := content.count(b"\n")) != lines:
        raise DataError(f"{path} has {count:,} lines, not {lines:,}.\nDelete its folder to download it again.")
    return content


def _download_wikitext103(report: Report, folder: Path) -> None:
    from datasets import load_dataset  # type: ignore[import-untyped]

    report(f"downloading WikiText-103 from {WIKITEXT} (once; 540 MB)")
    for split, (name, lines) in WIKITEXT_SPLITS.items():
        count, rows = 0, load_dataset(WIKITEXT, WIKITEXT_CONFIG, split=name, streaming=True)
        with (folder / f"{split}.txt").open("wb") as file:
            for row in rows:
                file.write(row["text"].removesuffix("\n").encode() + b"\n")
                count += 1
        if count != lines:
            raise OSError(f"its {split} split has {count:,} lines, not {lines:,}")
