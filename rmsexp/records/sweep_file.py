"""Write and read ``sweep.json``, which lists the runs of a sweep. It may be damaged, or come from others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from rmsexp.records import record
from rmsexp.records.contents import Steps
from rmsexp.system import atomic
from rmsexp.system.typed import read_typed

FILE = "sweep.json"
FORMAT: Literal[1] = 1
DIGITS = 10


class SweepFile(NamedTuple):
    """The content of a ``sweep.json``.

    Attributes:
        command: the words after ``python -m rmsexp`` that do the sweep, without the folder of results.
        runs: the number of steps of each run, by its folder below the results, ``<task>/<setting>/<series>/seed<k>``.
    """

    command: tuple[str, ...]
    runs: dict[str, Steps]
    format: Literal[1] = FORMAT


def place(results: Path, runs: Mapping[str, int]) -> Path:
    """Return where the file of a sweep of these runs lies. Sweeps of the same runs share it."""
    return results / "sweeps" / hashlib.sha256("\n".join(sorted(runs)).encode()).hexdigest()[:DIGITS] / FILE


def write(results: Path, command: Sequence[str], runs: Mapping[str, int]) -> Path:
    """Write the file of a sweep below its results, and return it. It replaces that of a sweep of the same runs."""
    path = place(results, runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_json(path, {"format": FORMAT, "command": list(command), "runs": dict(runs)})
    return path


def find(root: Path) -> Iterator[Path]:
    """Yield the ``sweep.json`` of each sweep below a folder, which may hold several results folders."""
    yield from record.find(root, f"sweeps/*/{FILE}")


def read(path: Path) -> SweepFile:
    """Return the content of a file.

    Raises: OSError if it cannot be opened; ValueError, with a message that names the file, if it is damaged.
    """
    stored = read_typed(path, SweepFile)
    if wrong := [folder for folder in stored.runs if not record.can_be_run_folder(folder)]:
        raise ValueError(f"{path}: {wrong[0]!r:.80} is not <task>/<setting>/<series>/seed<k>")
    return stored
