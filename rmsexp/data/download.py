"""Download the files of a data set that are missing."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from rmsexp.data import DataError, UnavailableError, cache
from rmsexp.data.files import check_root
from rmsexp.system.atomic import sync_folder
from rmsexp.system.command_line import value_word

TIMEOUT_SECONDS = 30  # longest wait for a connection, and for each further part of a response


def provide(
    name: str, files: Sequence[Path], write: Callable[[Path], object], source: str, task: str, root: Path
) -> None:
    """Download the files of a folder that do not exist yet. A file appears only when all are complete.

    ``write`` downloads them into a temporary folder, or a folder in it. ``name`` is the data set, ``source`` a URL or
    the name of another source, ``root`` the value of data.root. With the words ``task``, ``python -m rmsexp.prepare``
    downloads the files. If several processes need the same files, one downloads them and the others wait.

    Raises: UnavailableError if data.root is the wrong folder, or if ``write`` fails.
    """
    if all(path.exists() for path in files):
        return
    check_root(name, root, files)
    folder, timeout = files[0].parent, socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        with cache.staging(files[0]) as temporary:
            absent = [path for path in files if not path.exists()]  # another process may have written some meanwhile
            if absent:
                write(temporary)
            written = {path: next(temporary.rglob(path.name)) for path in absent}
            for file in written.values():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
            for path, file in written.items():
                file.rename(path)
            sync_folder(folder)
    except DataError:
        raise
    except Exception as error:  # the libraries raise many types of errors about network and storage
        raise UnavailableError(
            f"{name} is not in {folder}, and the download from {source} failed ({error or type(error).__name__}).\n"
            f"Run `python -m rmsexp.prepare {task} {value_word('data.root', root)}` where there is a network, or put "
            f"existing copies of {', '.join(path.name for path in files)} there; scale=demo needs no data."
        ) from None
    finally:
        socket.setdefaulttimeout(timeout)
