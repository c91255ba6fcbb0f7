"""Files of data sets: read and download them, compute digests, name missing and damaged ones, store results.

They are downloaded with the libraries of their publishers: torchvision, torch, the Hugging Face hub, sacreBLEU.
"""

import gzip
import hashlib
import os
import shutil
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from rmsexp.data import DataError
from rmsexp.system.atomic import sync_folder
from rmsexp.system.command_line import inform, value_word
from rmsexp.system.lock import locked

T = TypeVar("T")

TIMEOUT_SECONDS = 30  # longest wait for a connection, and for each further part of a response


def read_bytes(path: Path) -> bytes:
    """Return a file's content. Raises: DataError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, plain or compressed (.gz), without their ends and without a byte order mark.

    Only "\\n" and "\\r\\n" end a line, because text may contain other line separators of Unicode.

    Raises: DataError if the file cannot be read, is damaged or is no text in UTF-8.
    """
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if b"\0" in line:
                    raise DataError(
                        f"{path}, line {number}: a NUL byte: probably UTF-16 instead of UTF-8.\nConvert the file."
                    )
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8" if number > 1 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number}: not UTF-8 ({error.reason}).\nConvert it to UTF-8; unpack it if it is compressed."
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from None


@contextmanager
def checked(path: Path, kind: str) -> Iterator[bytes]:
    """Yield the content of a file. ``kind``: what the file should be, for the message "PATH is not KIND".

    Raises: DataError that names the file if it cannot be read, or if the ``with`` block raises any exception.
    """
    content = read_bytes(path)
    try:
        yield content
    except Exception as error:  # damaged files may raise any exception
        problem = " ".join(str(error).split()).rstrip(".")  # numpy's messages may have several lines
        raise DataError(f"{path} is not {kind} ({type(error).__name__}: {problem}).\nReplace the file.") from None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal. Raises: DataError if the file cannot be read."""
    try:
        status = path.stat()
        return _sha256_of_version(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise unreadable(path, error) from None


@lru_cache(maxsize=256)  # a process reads a file again only if its size or its time of change is another
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


def require(name: str, folder: Path, paths: Iterable[Path], origin: str) -> None:
    """Raise DataError unless all ``paths`` exist, files below ``folder`` that the user has to put there.

    ``name``: the data set. ``origin``: a full sentence that says where to get the files and where to put them.
    """
    if absent := [path.relative_to(folder) for path in paths if not path.exists()]:
        more = f" ({len(absent)} files are missing)" if len(absent) > 1 else ""
        raise DataError(
            f"{name} is incomplete: in {folder} there is no {absent[0]}{more}.\n{origin} scale=demo needs no data."
        )


def unreadable(file: Path | str, error: Exception, remedy: str = "Replace the file.") -> DataError:
    """Return the error for a file that cannot be opened or decoded. ``file`` is its path or a text with its path."""
    reason = getattr(error, "strerror", None) or " ".join(f"{type(error).__name__}: {error}".split())
    return DataError(f"{file} cannot be read ({reason}).\n{remedy}")


@contextmanager
def downloading(name: str, folder: Path, words: str, root: Path) -> Iterator[None]:
    """Hold a lock while a library downloads a data set to ``folder``. Raises: DataError if it fails.

    ``name`` is the data set; ``words`` are the overrides with which ``python -m rmsexp.prepare`` downloads it; ``root``
    is data.root.
    """
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".lock", lambda: inform(f"waiting for another process that downloads {name}")):
            yield
    except Exception as error:  # the libraries raise many types of errors about network and storage
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{name} is not in {folder}, or damaged, and its download failed ({reason}).\n"
            f"Run `python -m rmsexp.prepare {words} {value_word('data.root', root)}` where there is a network, or put "
            "its files there; scale=demo needs no data."
        ) from None
    finally:
        socket.setdefaulttimeout(timeout)


def hub_files(
    name: str, folder: Path, repository: str, revision: str, config: str, splits: Sequence[str], words: str
) -> list[list[Path]]:
    """Return the Parquet files in ``<folder>/<config>`` of each split of a data set on the Hugging Face hub.

    If one is missing, they are downloaded at this ``revision``. ``name`` and ``words`` are as in :func:`downloading`.

    Raises: DataError if the download fails.
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
    """Return the files ``<split>-<number>-of-<count>.parquet`` of a split, or none if one of them is missing.

    Other files, such as a part of an earlier revision's, are ignored.
    """
    sets: dict[str, list[Path]] = {}
    for path in sorted(folder.glob(f"{split}-*-of-*.parquet")):
        sets.setdefault(path.stem.rpartition("-")[2], []).append(path)
    return next((paths for count, paths in sets.items() if count == f"{len(paths):05}"), [])


def hub_rows(paths: Sequence[Path], read: Callable[[dict[str, Any]], T]) -> Iterator[T]:
    """Yield ``read(row)`` for each row of Parquet files, which are never in memory as a whole.

    Raises: DataError that names the file if it cannot be read, or if ``read`` raises any exception.
    """
    from datasets import load_dataset  # type: ignore[import-untyped]

    for path in paths:
        try:
            yield from map(read, load_dataset("parquet", data_files=str(path), split="train", streaming=True))
        except Exception as error:  # damaged files may raise any exception
            raise unreadable(path, error, "Delete it to download it again.") from None


def key(source: str, *parts: object) -> str:
    """Return a name, 16 hexadecimal digits, for a stored result that depends on ``parts`` and on a module's code.

    ``source`` is the ``__file__`` of the module that computes the result; those that it imports have no influence.
    """
    code = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return hashlib.sha256(repr((code, *parts)).encode()).hexdigest()[:16]


def cached(folder: Path, read: Callable[[Path], T], make: Callable[[Path], None]) -> T:
    """Return ``read(folder)``. If the folder is missing, let ``make`` write its files to a temporary folder first.

    Of several processes, one makes it and the others wait. If ``make`` fails or is killed, nothing is stored.

    Raises: DataError if the folder cannot be read or stored, or for an OSError of ``make``; other errors of ``make``.
    """
    if not folder.exists():
        try:
            with staging(folder) as temporary:
                if not folder.exists():  # another process may have made it while this one waited
                    make(temporary)
                    publish(temporary, folder)
        except OSError as error:
            raise DataError(
                f"{folder} cannot be stored ({error.strerror or error}).\n"
                "Free some space there, or choose another folder (data.root)."
            ) from None
    try:
        return read(folder)
    except (OSError, ValueError, TypeError, LookupError, EOFError, RuntimeError) as error:  # the last: of sentencepiece
        raise unreadable(folder, error, "Delete this folder; it is then computed again.") from None


@contextmanager
def staging(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside ``path``, and hold a lock for ``path`` meanwhile.

    At the end, or when the lock is taken after a kill, the folder is removed unless it was renamed (:func:`publish`).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with locked(path.with_name(f".{path.name}.lock"), lambda: inform(f"waiting for another process: {path}")):
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def publish(temporary: Path, folder: Path) -> None:
    """Rename a folder once its files are on the disk."""
    for path in temporary.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(temporary)
    temporary.rename(folder)
    sync_folder(folder.parent)
