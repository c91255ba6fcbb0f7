"""The file systems that this process sees. This module imports only the standard library."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

MOUNTS = Path("/proc/self/mounts")


class Mount(NamedTuple):
    """A mounted file system: it appears at ``point``. ``kind``: its type, such as ext4, nfs4 or cgroup2."""

    point: Path
    kind: str


def mounts() -> list[Mount]:
    """Return all mounts, in the order in which they were made; none if the kernel does not list them."""
    try:
        lines = MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return []
    fields = (line.split(" ") for line in lines)  # SOURCE POINT KIND OPTIONS … (man 5 fstab)
    return [Mount(Path(_unescaped(point)), kind) for _, point, kind, *_ in fields]


def _unescaped(word: str) -> str:
    r"""Return a path in which the kernel has written blanks and backslashes in octal digits, as in ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)
