"""Write checkpoints atomically, and read the newest one that is neither damaged nor of another run.

A checkpoint is a dict whose entry ``identity`` says to which run it belongs. Its file is the zip archive that
:func:`torch.save` writes, with the SHA-256 of all bytes before it as the archive's comment.
"""

import hashlib
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from rmsexp.system.atomic import move_aside, sync_folder, write_atomic
from rmsexp.system.command_line import ReportedError, memory_message
from rmsexp.system.files import read_regular
from rmsexp.system.readers import NOT_DAMAGE

LAST, PREVIOUS, BEST, DAMAGED = "last.pt", "previous.pt", "best.pt", "damaged.pt"
FORMAT = 1
DIGEST_BYTES = 64  # a SHA-256 in hexadecimal digits
UNFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)  # see load
Payload = dict[str, Any]
T = TypeVar("T")


class CheckpointError(ReportedError, RuntimeError):
    """A checkpoint is missing, damaged, or of another run."""


class Identity(NamedTuple):
    """What distinguishes the checkpoints of different runs.

    ``config`` and ``data``: digests of the run's config and of its data set. ``format``: that of the checkpoint.
    """

    seed: int
    config: str
    data: str
    format: int = FORMAT


def save(folder: Path, payload: Payload, name: str = LAST) -> None:
    """Write a checkpoint. If it is ``last.pt``, the one before it becomes ``previous.pt``."""
    folder.mkdir(parents=True, exist_ok=True)
    content = _bytes(payload)
    if name == LAST and (folder / LAST).exists():
        (folder / LAST).replace(folder / PREVIOUS)
        sync_folder(folder)
    write_atomic(folder / name, content)


def load(folder: Path, identity: Identity, use: Callable[[Payload], T]) -> tuple[T | None, list[str]]:
    """Return ``use(payload)`` for the newest checkpoint that can be used, or None without checkpoints; and warnings.

    If only ``last.pt`` cannot be used, it is renamed to ``damaged.pt``; otherwise the next :func:`save` would replace
    ``previous.pt`` by it. The warnings say why it cannot be used.

    ``identity``: that of the run. ``use`` raises an exception in ``UNFIT`` if the checkpoint does not fit the run.

    Raises: CheckpointError if there are checkpoints and none of them can be used; ReportedError as :func:`read`.
    """
    warnings: list[str] = []
    for path in (folder / LAST, folder / PREVIOUS):
        if not path.exists():
            continue
        try:
            result = use(read(path, identity))
        except CheckpointError as error:
            warnings.append(str(error))
        except UNFIT as error:
            if memory_message(error) is not None:  # the checkpoint may be intact
                raise
            warnings.append(f"{path} does not fit the run ({_first_line(error)})")
        else:
            if warnings:
                warnings = [f"{warnings[0]}; continuing from {path.name}"]
                if (folder / DAMAGED).exists():
                    move_aside(folder / DAMAGED)
                (folder / LAST).replace(folder / DAMAGED)
            return result, warnings
    if warnings:
        advice = "start a new run with force=true, which keeps this one beside it"
        raise CheckpointError(f"{warnings[0]}, and no other checkpoint can be used; {advice}")
    return None, []


def read(path: Path, identity: Identity | None = None) -> Payload:
    """Return the content of a checkpoint.

    ``identity``: that of the run to which it must belong; None: any run.

    Raises: CheckpointError if the file is missing, damaged, or of another run; ReportedError if it may be intact, but
    cannot be read now.
    """
    try:
        content = read_regular(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as error:
        if error.errno in NOT_DAMAGE:
            raise ReportedError(f"{path} cannot be read ({error.strerror}); repeat the command when it can") from None
        raise CheckpointError(f"{path} is damaged ({_first_line(error)})") from None
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            digest = archive.comment.decode("ascii", "replace")
        if digest != hashlib.sha256(memoryview(content)[:-DIGEST_BYTES]).hexdigest():
            raise ValueError("its digest is wrong")
        payload: Payload = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # damage raises many types of exceptions
        if memory_message(error) is not None:
            raise
        raise CheckpointError(f"{path} is damaged ({_first_line(error)})") from None
    found = payload.get("identity")
    found = found if isinstance(found, dict) else {}
    for key, value in (identity._asdict() if identity is not None else {}).items():
        if found.get(key) != value:
            raise CheckpointError(f"{path} is of another run (its {key} is {found.get(key)!s:.12}, not {value!s:.12})")
    return payload


def _bytes(payload: Payload) -> bytes:
    buffer = io.BytesIO()
    torch.save(payload, buffer)
    buffer.seek(-2, io.SEEK_END)  # the last two bytes of a zip archive are the length of its comment
    buffer.write(struct.pack("<H", DIGEST_BYTES))
    with buffer.getbuffer() as content:
        digest = hashlib.sha256(content).hexdigest()
    buffer.write(digest.encode())
    return buffer.getvalue()


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, after its type unless that is ValueError, in 120 characters."""
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return f"{kind}{str(error).partition(chr(10))[0]}"[:120]
