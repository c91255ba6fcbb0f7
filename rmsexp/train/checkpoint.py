"""Write checkpoints atomically, and read the newest one that is not damaged."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import torch

from rmsexp.command_line import ReportedError
from rmsexp.record import sync_folder, write_atomic

LAST, PREVIOUS, BEST, DAMAGED = "last.pt", "previous.pt", "best.pt", "damaged.pt"
Payload = dict[str, Any]


class CheckpointError(ReportedError, RuntimeError):
    """A checkpoint is missing or damaged."""


def save(folder: Path, payload: Payload) -> None:
    """Write ``last.pt``; the checkpoint before it becomes ``previous.pt``."""
    folder.mkdir(parents=True, exist_ok=True)
    content = _bytes(payload)
    if (folder / LAST).exists():
        (folder / LAST).replace(folder / PREVIOUS)
        sync_folder(folder)
    write_atomic(folder / LAST, content)


def save_best(folder: Path, payload: Payload) -> None:
    """Write ``best.pt``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / BEST, _bytes(payload))


def load(folder: Path) -> tuple[Payload | None, str | None]:
    """Return the newest undamaged checkpoint, and a warning if a newer one is damaged. Each is None if there is none.

    The checkpoints are ``last.pt`` and, older, ``previous.pt``. If only ``last.pt`` is damaged, it is renamed to
    ``damaged.pt``; otherwise the next :func:`save` would replace ``previous.pt`` by it.

    Raises: CheckpointError if there are checkpoints and all of them are damaged.
    """
    damaged = []
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            payload = read(path)
        except CheckpointError as error:
            damaged.append(str(error))
            continue
        if not damaged:
            return payload, None
        (folder / LAST).replace(folder / DAMAGED)
        return payload, f"{damaged[0]}; continuing from {name}"
    if damaged:
        raise CheckpointError(f"{damaged[0]} and there is no undamaged one; start a new run with force=true")
    return None, None


def read(path: Path) -> Payload:
    """Return the content of a checkpoint. Raises: CheckpointError if the file is missing or damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()  # torch.load does not check the checksums
        if broken is not None:
            raise ValueError(f"the checksum of {broken} is wrong")
        payload: Payload = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except Exception as error:  # damage raises many types of exceptions
        raise CheckpointError(f"{path} is damaged ({type(error).__name__}: {str(error).splitlines()[0]})") from None
    return payload


def _bytes(payload: Payload) -> bytes:
    buffer = io.BytesIO()
    torch.save(payload, buffer)
    return buffer.getvalue()
