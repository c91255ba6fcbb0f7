"""Download data sets with the libraries of their publishers: torchvision, torch, the Hugging Face hub, sacreBLEU."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rmsexp.data import DataError, UnavailableError
from rmsexp.system.command_line import inform, value_word
from rmsexp.system.file_lock import locked

TIMEOUT_SECONDS = 30  # longest wait for a connection, and for each further part of a response


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
