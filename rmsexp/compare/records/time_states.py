"""Whether something slowed a process down while it was timed, from its session in a record; and the same of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rmsexp.record import FEWEST_PROBES, SLOWDOWN_LIMITS, WAITED_LIMIT


def time_state(session: Mapping[str, Any]) -> str:
    """Return "clear", "contended", or, if the session does not record it, "unknown".

    Until November 2026 the limit for waiting was 5 %. A session of that time counts as contended if its threads waited
    for longer than ``WAITED_LIMIT`` allows now, also if its record says "clear".
    """
    contention = session.get("contention") or {}
    state = str(contention.get("state", "unknown"))
    waited = contention.get("waited") or 0.0
    return "contended" if state == "clear" and waited > WAITED_LIMIT else state


def run_state(sessions: Sequence[Mapping[str, Any]]) -> str:
    """Return the state of a run's time, from its sessions (the processes that trained it).

    It is the first of these that holds. "mixed": a session is marked as not comparable, mostly because the machine,
    the software or the code changed during the run; "contended": a session shared the processors with other work, or
    the probes of all sessions together were slow; "clear": neither; "unknown": the contention of a session is not
    recorded, or there were too few probes. Savings that are computed from runs need clear times.
    """
    if not all(session.get("comparable", True) for session in sessions):
        return "mixed"
    states = {*map(time_state, sessions), _state_of_probes(sessions)}
    if "contended" in states:
        return "contended"
    return "clear" if sessions and states == {"clear"} else "unknown"


def _state_of_probes(sessions: Sequence[Mapping[str, Any]]) -> str:
    """Return the state of a run by the probes of all its sessions; "unknown" if they are fewer than ``FEWEST_PROBES``.

    A record has the median of a session's probes only, so each of them counts as slow if this median is. Without the
    reference of the quiet machine the probes show nothing, and the state is "clear".
    """
    reports = [(session.get("contention") or {}).get("probes") or {} for session in sessions]
    reports = [report for report in reports if report.get("reference")]
    total = sum(report["number"] for report in reports)
    if reports and total < FEWEST_PROBES:
        return "unknown"
    for part, limit in SLOWDOWN_LIMITS.items():
        slow = [report["number"] for report in reports if report["median"][part] > limit * report["reference"][part]]
        if 2 * sum(slow) > total:
            return "contended"
    return "clear"
