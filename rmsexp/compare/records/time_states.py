"""Whether something slowed a process down while it was timed, from its session in a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmsexp.record import WAITED_LIMIT


def time_state(session: Mapping[str, Any]) -> str:
    """Return "clear", "contended", or, if the session does not record it, "unknown".

    Until November 2026 the limit for waiting was 5 %. A session of that time counts as contended if its threads waited
    for longer than ``WAITED_LIMIT`` allows now, also if its record says "clear".
    """
    contention = session.get("contention") or {}
    state = str(contention.get("state", "unknown"))
    waited = contention.get("waited") or 0.0
    return "contended" if state == "clear" and waited > WAITED_LIMIT else state
