"""Run a command in this process, and judge its exit status and what it prints to standard error."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from unittest import mock

from fuzzing.workers import Broken, Refused

STATUSES = (0, 1, 2)  # documented exit statuses of commands that no signal stops
MESSAGE = re.compile(r"^(rmsexp|python -m rmsexp[.\w]*|rmsexp [\w ]*)(: error)?: ", re.MULTILINE)


def command(main: Callable[[Sequence[str]], int | None], words: Sequence[str], stdin: bytes = b"") -> int:
    """Run a command and return 0.

    Raises: Refused, with the longest message that was printed, if the command ends with the status 1 or 2; Broken if it
    ends otherwise, prints a traceback, or fails without a message; and whatever ``main`` raises.
    """
    out, error = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") for _ in range(2))
    source = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    with (
        mock.patch.object(sys, "stdin", source),
        mock.patch.object(sys, "argv", ["rmsexp", *words]),
        redirect_stdout(out),
        redirect_stderr(error),
    ):
        try:
            status = main(list(words)) or 0
        except SystemExit as end:
            status = end.code or 0
    return judged(status, _written(out), _written(error))


def judged(status: object, out: str, error: str) -> int:
    """Return 0 for a command that ended with the exit status 0 and without a traceback.

    Raises: Refused and Broken, as in :func:`command`.
    """
    text = out + error
    if status not in STATUSES:
        raise Broken(f"exit status {status}: {text[-100:]!r}")
    if "Traceback (most recent call last)" in text or "(traceback in" in text:
        raise Broken(f"a traceback was printed or stored: {text[-100:]!r}")
    if not status:
        return 0
    messages = _messages(error)
    if not messages:
        raise Broken(f"exit status {status} without a message")
    raise Refused(max(messages, key=lambda message: (message.count("\n"), len(message))))


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode(errors="replace")  # type: ignore[attr-defined]


def _messages(text: str) -> list[str]:
    """Return the messages of errors in what a command printed to standard error, without the command's name."""
    ends = [*(match.start() for match in MESSAGE.finditer(text)), len(text)]
    return [MESSAGE.sub("", text[start:stop], count=1).rstrip("\n") for start, stop in pairwise(ends)]
