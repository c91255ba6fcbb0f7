"""Locks of open files (flock): who holds one, and which file systems have none.

Only "would block" means that another process holds a lock. A file system without locks answers with other errors, as
Lustre does if it is mounted without ``-o flock``. This module imports only modules of the standard library, and
``mounts``.
"""

from __future__ import annotations

import errno
import fcntl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from rmsexp.system.mounts import mount_of

HOST_ONLY = {"nolock", "local_lock=all", "local_lock=flock", "localflock"}  # options of NFS and Lustre
# Waiting polls: in a blocking flock, a signal that another thread receives would not reach Python's handler.
POLL_SECONDS = 0.1
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # what file systems without locks answer


class NoLocksError(OSError):
    """The file system cannot lock files."""


def try_to_lock(file: IO[str], kind: int) -> bool:
    """Lock a file without waiting. Return False if another process holds a lock that excludes this one.

    ``kind``: fcntl.LOCK_EX or fcntl.LOCK_SH. Raises: NoLocksError; OSError if the lock fails for another reason.
    """
    try:
        _flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(
    file: IO[str], waiting: Callable[[], None] = lambda: None, kind: int = fcntl.LOCK_EX, patience: int = 0
) -> None:
    """Lock a file as soon as that is possible. Call ``waiting`` once if it is not within ``patience`` polls.

    ``kind``, and raises: as :func:`try_to_lock`.
    """
    polls = 0
    while not try_to_lock(file, kind):
        if polls == patience:
            waiting()
        polls += 1
        threading.Event().wait(POLL_SECONDS)


def host_only(path: Path) -> str | None:
    """Return a warning if the file system of a path has locks that processes on other hosts do not see, else None."""
    mount = mount_of(path)
    if mount is None or not (options := sorted(HOST_ONLY & mount.options)):
        return None
    return (
        f"warning: {path} is on {mount.kind} mounted with {options[0]}, whose locks other machines do not see; "
        "start workers on one machine only, or mount it without this option"
    )


def _flock(file: IO[str], kind: int) -> None:
    try:
        fcntl.flock(file, kind)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno in NO_LOCKS:
            raise NoLocksError(_message(Path(file.name), str(error.strerror))) from None
        raise OSError(error.errno, error.strerror, file.name) from None


def _message(path: Path, reason: str) -> str:
    mount = mount_of(path)
    where = f", {mount.kind} at {mount.point}," if mount else ""
    return f"the file system of {path}{where} has no locks ({reason}); choose a folder on another file system"
