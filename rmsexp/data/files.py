"""Files of data sets: read and download them, compute digests, and build the errors for missing and damaged files.

They are downloaded with the libraries of their publishers: torchvision, torch, the Hugging Face hub, sacreBLEU.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from rmsexp.data import DataError, UnavailableError
from rmsexp.system.command_line import inform, value_word
from rmsexp.system.lock import locked

TIMEOUT_SECONDS = 30  # longest wait for a connection, and for each further part of a response


def read_bytes(path: Path) -> bytes:
    """Return a file's content. Raises: DataError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, without their ends and without a byte order mark.

    Only "\\n" ends a line; a "\\r" before it is kept. An empty file gives one empty line.

    Raises: DataError if the file cannot be read or is not UTF-8.
    """
    content = read_bytes(path)
    try:
        return content.decode("utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise not_utf8(path, content.count(b"\n", 0, error.start) + 1, error) from None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal. Raises: DataError if the file cannot be read.

    A process reads a file again only if its size or its time of change is another.
    """
    try:
        status = path.stat()
        return _sha256_of_version(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise unreadable(path, error) from None


@lru_cache(maxsize=256)
def _sha256_of_version(path: Path, size: int, changed: int) -> str:  # noqa: ARG001
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(paths: Iterable[Path]) -> str:
    """Return a SHA-256, in hexadecimal, of the names (without folders) and contents of files, in this order."""
    return hashlib.sha256(repr([(path.name, sha256_of(path)) for path in paths]).encode()).hexdigest()


def digest_of_contents(paths: Iterable[Path]) -> str:
    """Return a SHA-256, in hexadecimal, of the contents of files, in this order."""
    return hashlib.sha256(repr([sha256_of(path) for path in paths]).encode()).hexdigest()


def digest_of_words(words: Sequence[str]) -> str:
    """Return a digest of a vocabulary, 16 hexadecimal digits: of its words and their order, which gives their ids."""
    return hashlib.sha256(repr(list(words)).encode()).hexdigest()[:16]


def missing(name: str, folder: Path, paths: Iterable[Path], origin: str) -> DataError:
    """Return the error for missing files, ``paths`` below ``folder``, that the user has to get.

    ``name`` is the data set. ``origin`` is a full sentence that says where to get the files and where to put them.
    """
    first, *others = [path.relative_to(folder) for path in paths]
    more = f", nor {len(others)} other files" if others else ""
    return UnavailableError(
        f"{name} is incomplete: in {folder} there is no {first}{more}.\n{origin} scale=demo needs no data."
    )


def unreadable(file: Path | str, error: Exception, remedy: str = "Replace the file.") -> DataError:
    """Return the error for a file that cannot be opened or decoded. ``file`` is its path or a text with its path."""
    reason = getattr(error, "strerror", None) or error or type(error).__name__
    return DataError(f"{file} cannot be read ({reason}).\n{remedy}")


def not_utf8(path: Path, line: int, error: UnicodeDecodeError) -> DataError:
    """Return the error for a line that is not UTF-8. ``line`` counts from 1."""
    return DataError(
        f"{path}, line {line}: not UTF-8 ({error.reason}).\nUnpack a compressed file; convert another to UTF-8."
    )


@contextmanager
def downloading(name: str, folder: Path, words: str, root: Path) -> Iterator[None]:
    """Hold a lock while a library downloads a data set to ``folder``, and turn its errors into one of ours.

    ``name`` is the data set, ``words`` are those with which ``python -m rmsexp.prepare`` downloads it, ``root`` is
    data.root. If several processes need the same data, one downloads them and the others wait.

    Raises: UnavailableError if the download fails.
    """
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".lock", lambda: inform(f"waiting for another process that downloads {name}")):
            yield
    except DataError:
        raise
    except Exception as error:  # the libraries raise many types of errors about network and storage
        raise UnavailableError(
            f"{name} is not in {folder}, or damaged, and its download failed ({error or type(error).__name__}).\n"
            f"Run `python -m rmsexp.prepare {words} {value_word('data.root', root)}` where there is a network, or put "
            "its files there; scale=demo needs no data."
        ) from None
    finally:
        socket.setdefaulttimeout(timeout)


def hub_files(
    name: str, folder: Path, repository: str, revision: str, config: str, splits: Sequence[str], words: str
) -> list[list[Path]]:
    """Return the Parquet files of each of the ``splits`` of a data set on the Hugging Face hub.

    They are in ``<folder>/<config>``, named like ``train-00000-of-00002.parquet``, as in the repository. If one is
    missing, they are downloaded at this ``revision``. ``name`` and ``words`` are as in :func:`downloading`.

    Raises: UnavailableError if the download fails.
    """
    found = [_complete(folder / config, split) for split in splits]
    if not all(found):
        from huggingface_hub import snapshot_download

        with downloading(name, folder, words, folder.parent):
            inform(f"downloading {name} from {repository} (once)")
            patterns = [f"{config}/{split}-*" for split in splits]
            snapshot_download(
                repository, repo_type="dataset", revision=revision, allow_patterns=patterns, local_dir=folder
            )
            found = [_complete(folder / config, split) for split in splits]
            if not all(found):
                raise OSError("files are missing after the download")
    return found


def _complete(folder: Path, split: str) -> list[Path]:
    """Return the files ``<split>-<number>-of-<count>.parquet`` of a split, or none if one of them is missing."""
    paths = sorted(folder.glob(f"{split}-*-of-*.parquet"))
    return paths if paths and len(paths) == int(paths[0].stem.rpartition("-")[2]) else []


def hub_rows(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield the rows of Parquet files, of which little is in memory at a time."""
    from datasets import load_dataset  # type: ignore[import-untyped]

    yield from load_dataset("parquet", data_files=[str(path) for path in paths], split="train", streaming=True)
