"""Download single files: show progress, verify the digest, and never leave an incomplete file."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from rmsexp.data import DataError, UnavailableError
from rmsexp.system.command_line import value_word

TIMEOUT_SECONDS = 30  # longest wait for the connection, and for each further part of the response


@contextmanager
def fetched(url: str, folder: Path, name: str, algorithm: Literal["md5", "sha256"], digest: str) -> Iterator[Path]:
    """Download a file into a temporary folder inside ``folder``, verify its digest, and yield its path.

    The file is written through to the disk. To keep it, the caller must move it, because the temporary folder is
    removed at the end of the ``with`` block. ``folder`` is created if it is missing, but only after the server has
    answered. ``name`` is what messages call the file.

    Raises: DataError if the digest differs; OSError or http.client.HTTPException if the download or a write fails.
    """
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as temporary:
            path = Path(temporary, url.rpartition("/")[2])
            _receive(response, path, name)
            _verify(path, url, name, algorithm, digest)
            yield path


def unavailable(
    name: str, folder: Path, files: str, source: str, error: object, task: str, root: Path
) -> UnavailableError:
    """Return the error for data that is not in ``folder`` and that could not be downloaded from ``source``.

    ``name`` is the data set. ``source`` is a URL or the name of another source. ``error`` says why the download failed.
    ``files`` describes the files that belong in ``folder``. With the words ``task`` and with ``data.root=root``,
    ``python -m rmsexp.prepare`` downloads them.
    """
    return UnavailableError(
        f"{name} is not in {folder}, and the download from {source} failed ({error}).\n"
        f"Run `python -m rmsexp.prepare {task} {value_word('data.root', root)}` where there is a network, or put an "
        f"existing copy of {files} there; "
        "scale=demo needs no data."
    )


def _receive(response: Any, path: Path, name: str) -> None:
    """Write the body of a response to a file, and through to the disk.

    Standard error shows a progress bar labelled ``name`` if it is a terminal, and otherwise one line with the URL.
    """
    from rich.console import Console
    from rich.progress import wrap_file

    total_bytes = int(response.headers.get("Content-Length") or 0)
    with path.open("wb") as file:
        if sys.stderr.isatty():
            with wrap_file(response, total_bytes, description=name, console=Console(stderr=True)) as body:
                shutil.copyfileobj(body, file)
        else:
            print(f"downloading {response.url} ({total_bytes / 1e6:.1f} MB)", file=sys.stderr, flush=True)
            shutil.copyfileobj(response, file)
        file.flush()
        os.fsync(file.fileno())


def _verify(path: Path, url: str, name: str, algorithm: str, digest: str) -> None:
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, algorithm).hexdigest()
    if actual != digest:
        raise DataError(
            f"The file from {url} is not {name}: its {algorithm} is {actual}, not {digest} "
            f"({path.stat().st_size:,} bytes).\nIt was not stored; try again, or use scale=demo, which needs no data."
        )
