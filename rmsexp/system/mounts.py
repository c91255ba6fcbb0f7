"""The file systems that this process sees. This module imports only the standard library."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

MOUNTINFO = Path("/proc/self/mountinfo")


class Mount(NamedTuple):
    """A mounted file system: the folder ``root`` of it appears at ``point``.

    ``kind``: its type, such as ext4, nfs4 or cgroup2. ``options``: those of the file system itself.
    """

    root: Path
    point: Path
    kind: str
    options: frozenset[str]


def mounts() -> list[Mount]:
    """Return all mounts, in the order in which they were made; none if the kernel does not list them."""
    try:
        lines = MOUNTINFO.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [_mount(line) for line in lines if " - " in line]


def mount_of(path: Path) -> Mount | None:
    """Return the mount that has a file, or None if it is not known. Of several at one point the last is in effect."""
    resolved = path.resolve()
    return max(
        (mount for mount in reversed(mounts()) if resolved.is_relative_to(mount.point)),
        key=lambda mount: len(mount.point.parts),
        default=None,
    )


def _mount(line: str) -> Mount:
    """Return the mount of a line "ID PARENT DEVICE ROOT POINT … - KIND SOURCE OPTIONS" (man 5 proc)."""
    before, after = line.split(" - ", 1)
    root, point = (Path(_unescaped(word)) for word in before.split()[3:5])
    kind, *_, options = after.split()
    return Mount(root, point, kind, frozenset(options.split(",")))


def _unescaped(word: str) -> str:
    r"""Return a path in which the kernel has written blanks and backslashes in octal digits, as in ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)
