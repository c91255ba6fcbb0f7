"""Keep failures of what only shows or copies the results of a run from ending it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Failures:
    """The parts of a run, such as its display and its loggers, that have failed and are switched off.

    ``errors``: the error of each such part.
    """

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}

    def attempt(self, part: str, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result of a call for a part, or None if the call fails or the part has failed before.

        The first failure of a part is recorded, and a line on standard error reports it.
        """
        if part in self.errors:
            return None
        try:
            return action(*args, **kwargs)
        except (Exception, SystemExit) as error:
            self.errors[part] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            print(f"warning: {part} is switched off, the run goes on ({self.errors[part]})", file=sys.stderr)
            return None
