"""Single files from the network: received with a sign of progress, verified, and kept whole or not at all."""

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

from rmsexp.data import DataError

TIMEOUT_SECONDS = 30  # for connecting, and for each wait on a server that has gone quiet


@contextmanager
def fetched(url: str, folder: Path, what: str, algorithm: Literal["md5", "sha256"], digest: str) -> Iterator[Path]:
    """The downloaded file, durable, in a temporary folder inside ``folder``; what is not moved away is removed.

    ``folder`` is made once the server has answered. ``what`` names the file in messages.

    Raises: DataError if its digest is another; OSError or http.client.HTTPException if it cannot be had or stored.
    """
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as temporary:
            path = Path(temporary, url.rpartition("/")[2])
            _receive(response, path, what)
            _check(path, url, what, algorithm, digest)
            yield path


def unavailable(name: str, folder: Path, files: str, source: str, error: object, prepare: str) -> DataError:
    """For data that is not in ``folder`` and could not be had from ``source``; ``prepare`` gets it elsewhere."""
    return DataError(
        f"{name} is not in {folder}, and fetching it from {source} failed ({error}). "
        f"Where there is a network, `python -m rmsexp.prepare {prepare}` gets it;\n"
        f"an existing copy of {files} may be put there instead; scale=demo needs no data."
    )


def _receive(response: Any, path: Path, what: str) -> None:
    """Writes the body to a file, with a bar on a terminal and one plain line elsewhere."""
    from rich.console import Console
    from rich.progress import wrap_file

    total_bytes = int(response.headers.get("Content-Length") or 0)
    with path.open("wb") as file:
        if sys.stderr.isatty():
            with wrap_file(response, total_bytes, description=what, console=Console(stderr=True)) as body:
                shutil.copyfileobj(body, file)
        else:
            print(f"downloading {response.url} ({total_bytes / 1e6:.1f} MB)", file=sys.stderr, flush=True)
            shutil.copyfileobj(response, file)
        file.flush()
        os.fsync(file.fileno())


def _check(path: Path, url: str, what: str, algorithm: str, digest: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != digest:
        raise DataError(
            f"What {url} sent is not {what}: its {algorithm} is {found}, not {digest} "
            f"({path.stat().st_size:,} bytes).\nNothing was kept; try again, or use scale=demo, which needs no data."
        )
