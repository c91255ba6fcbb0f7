"""The lock of this machine: while one process measures times, no other one measures, and campaign workers pause.

It is the lock of a file that all processes of this user on this machine share, in the folder of temporary files:
XDG_RUNTIME_DIR is removed when the user logs out, even if workers go on, and processes that cron or a container starts
lack it. Processes with different TMPDIR do not exclude each other.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

from rmsexp.system.files import private_folder
from rmsexp.system.lock import is_locked, locked

FOLDER = Path(tempfile.gettempdir(), f"rmsexp-{os.geteuid()}")
NAME = "measuring.lock"
POLL_SECONDS = 0.5
PATIENCE = 1.0  # seconds before a line reports the waiting

Report = Callable[[str], None]


@contextmanager
def measuring(report: Report) -> Iterator[None]:
    """Inside the context, no other process of this user measures on this machine, and campaign workers pause.

    Another measurement is waited for at the beginning; ``report`` gets a line if that takes more than a second. If the
    folder for temporary files cannot have locks, ``report`` gets a warning, and the context runs without the lock. A
    worker that trains is not waited for; it pauses within one logging interval (:func:`pause`).
    """
    with ExitStack() as stack:
        try:
            waiting = "waiting until another measurement on this machine ends"
            stack.enter_context(locked(private_folder(FOLDER) / NAME, lambda: report(waiting), PATIENCE))
        except OSError as error:
            report(f"warning: campaign workers on this machine do not pause for this measurement ({error})")
        yield


def pause(report: Report) -> None:
    """Wait while another process measures on this machine; ``report`` gets a line at the beginning and at the end."""
    if _is_measured():
        report("paused while another process measures on this machine; goes on when that ends")
        while _is_measured():
            Event().wait(POLL_SECONDS)
        report("going on")


def _is_measured() -> bool:
    try:
        return is_locked(FOLDER / NAME)
    except OSError:  # in a folder that this user cannot read, `measuring` has no lock either
        return False
