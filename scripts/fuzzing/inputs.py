"""What the definitions of readers share: writing files, damaging some of them, and comparing results."""

from __future__ import annotations

import random
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fuzzing.damage import Files, damaged


def silent(_: str) -> None: ...


def only(pattern: str) -> Callable[[Files, random.Random], Files]:
    """Return a function that damages only files whose path matches ``pattern``."""

    def vary(files: Files, rng: random.Random) -> Files:
        chosen = {name: content for name, content in files.items() if fnmatch(name, pattern)}
        return {name: content for name, content in files.items() if name not in chosen} | damaged(chosen, rng)

    return vary


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def plain(value: Any) -> Any:
    """Return nested values in a form that can be compared: arrays and tensors as type, shape and bytes."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        array = np.asarray(value)
        return str(array.dtype), array.shape, array.tobytes()
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return plain(vars(value)) if hasattr(value, "__dataclass_fields__") else repr(value)


def once(read: Callable[[Path], object]) -> Callable[[Path], list[object]]:
    """Return a function that returns the only right result, that for valid files."""
    return lambda folder: [read(folder)]
