"""The quiet reference: how long a probe takes on this machine while nothing else slows it down.

There is one file for each machine in the user's cache folder; ``python -m rmsexp.timing --calibrate`` writes it.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from rmsexp.system import atomic, machine
from rmsexp.system.command_line import brief
from rmsexp.system.private import belongs_to_user, cache_folder
from rmsexp.system.typed import Between, Count, read_typed
from rmsexp.train.probe import WORK, Times

FOLDER = Path("~/.cache/rmsexp/machines")
FILE = "quiet.json"
Seconds = Annotated[float, Between(1e-9, 1e9)]


@dataclass(frozen=True)
class Reference:
    """The median seconds of the two parts of a probe on the machine of this id.

    ``processes``: the number of fresh processes that took ``number`` probes in all.
    """

    machine: str
    work: str
    date: str
    processes: Count
    number: Count
    arithmetic: Seconds
    memory: Seconds

    @property
    def times(self) -> Times:
        return Times(self.arithmetic, self.memory)

    def content(self) -> dict[str, Any]:
        """Return what the file and the records have."""
        return asdict(self)


def machine_id() -> str:
    """Return the id of this machine, with the instructions that torch uses."""
    return str(machine.identity(torch.backends.cpu.get_cpu_capability())["id"])


def read() -> Reference | None:
    """Return the reference of this machine and of this probe's work.

    It is None if there is none. If there is one that cannot be used, a line on standard error says why.
    """
    try:
        path = path_of(machine_id())
        return _checked(path) if path.exists() else None
    except (OSError, ValueError) as error:
        advice = "renew it with python -m rmsexp.timing --calibrate"
        print(brief(f"notice: the machine's quiet reference is not used ({error}); {advice}"), file=sys.stderr)
        return None


def _checked(path: Path) -> Reference:
    """Return the reference in a file. Raises: OSError or ValueError if it cannot be used."""
    if not belongs_to_user(path):
        raise PermissionError(f"other users can change {path}")
    reference = read_typed(path, Reference)
    if (reference.machine, reference.work) != (machine_id(), WORK):
        raise ValueError(f"{path} is of another machine or of an older probe")
    return reference


def write(reference: Reference) -> Path:
    """Replace the reference of this machine; return the path of its file. Raises: OSError."""
    path = path_of(reference.machine)
    atomic.write_json(path, reference.content())
    path.chmod(0o600)  # with a umask such as 002 others could change it, and then it is refused
    return path


def path_of(identity: str) -> Path:
    return cache_folder(FOLDER, identity) / FILE
