"""Whether something slowed a run or a timing down, from the sessions of its processes in a record."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rmsexp.records.record import FEWEST_PROBES, SLOWDOWN_LIMITS, STEAL_LIMIT, TRAINED, WAITED_LIMIT


def time_state(session: Mapping[str, Any]) -> str:
    """Return "clear", "contended", or, if the session does not record it, "unknown".

    A session with too few probes is "clear" here if nothing else disturbed it, because probes are judged over all
    sessions together.

    Until 23 November 2026 the limit for waiting was 5 %. A session from before that counts as contended if its threads
    waited for longer than ``WAITED_LIMIT`` allows now, also if its record says "clear".
    """
    contention = session.get("contention") or {}
    state, waited = str(contention.get("state", "unknown")), contention.get("waited")
    if state == "contended" or waited is None:
        return state
    return "contended" if waited > WAITED_LIMIT else "clear"


def trained(sessions: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return the sessions of a run that took steps; all of them if none did. Its time is that of these."""
    return [session for session in sessions if session.get(TRAINED, True)] or sessions


def run_state(sessions: Sequence[Mapping[str, Any]]) -> str:
    """Return the state of a run's time, from its sessions (the processes that trained it).

    It is the first of these that holds. "mixed": a session is marked as not comparable, mostly because the machine,
    the software or the code changed during the run; "contended": a session shared the processors with other work, or
    the probes of all sessions together were slow; "clear": neither; "unknown": the contention of a session is not
    recorded, or there were too few probes. Savings that are computed from runs need clear times.
    """
    if not all(session.get("comparable", True) for session in sessions):
        return "mixed"
    return _worst({*map(time_state, sessions), _state_of_probes(sessions)} if sessions else {"unknown"})


def timing_state(sessions: Sequence[Mapping[str, Any]]) -> str:
    """Return the state of a timing's time, from the sessions of its processes, which are judged together.

    "contended": the mean of the processes' waiting or steal exceeds its limit, the probes of all processes together
    were slow, or a process was contended for another reason, such as a shared GPU or its suspension. "unknown": not so,
    but the contention of a process is not recorded, or there were too few probes. Otherwise "clear". The means have
    equal weights, because the processes of a timing measure for about equally long.
    """
    contentions = [session.get("contention") or {} for session in sessions]
    states = {_state_of_probes(sessions)}
    for key, limit in (("waited", WAITED_LIMIT), ("steal", STEAL_LIMIT)):
        mean = statistics.fmean(contention.get(key) or 0.0 for contention in contentions)
        states.add("contended" if mean > limit else "clear")
    states |= {time_state(session) for session in sessions if not _exceeds_a_limit(session)}
    for contention in contentions:
        if contention.get("shared") or "suspension" in contention.get("based_on", ()):
            states.add("contended")
    return _worst(states)


def disturbed(sessions: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of processes that were contended by themselves, or whose probes, however few, were slow."""
    return sum(time_state(session) == "contended" or _exceeds_a_limit(session) for session in sessions)


def median_probe(sessions: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Return the seconds of each part of the median probe of all sessions; None if they have too few probes.

    A record has the median of a session's probes only, so each of them counts as this median.
    """
    reports = [report for session in sessions if (report := (session.get("contention") or {}).get("probes"))]
    if sum(report["number"] for report in reports) < FEWEST_PROBES:
        return None
    return {
        part: _weighted_median([(report["median"][part], report["number"]) for report in reports])
        for part in SLOWDOWN_LIMITS
    }


def _weighted_median(values: Sequence[tuple[float, int]]) -> float:
    """Return the lower median of values, each of which occurs as often as the number beside it says."""
    ordered = sorted(values)
    counts = list(itertools.accumulate(number for _, number in ordered))
    return next(value for (value, _), count in zip(ordered, counts, strict=True) if 2 * count >= counts[-1])


def _worst(states: set[str]) -> str:
    return next((state for state in ("contended", "unknown") if state in states), "clear")


def _exceeds_a_limit(session: Mapping[str, Any]) -> bool:
    """Return whether the waiting, the steal or the median of the probes of one process exceeds its limit."""
    contention = session.get("contention") or {}
    waits, stolen = (contention.get("waited") or 0.0) > WAITED_LIMIT, (contention.get("steal") or 0.0) > STEAL_LIMIT
    return waits or stolen or any(_is_slow(report, part) for report in _probes([session]) for part in SLOWDOWN_LIMITS)


def _state_of_probes(sessions: Sequence[Mapping[str, Any]]) -> str:
    """Return the state by the probes of all sessions; "unknown" if they are fewer than ``FEWEST_PROBES``.

    A record has the median of a session's probes only, so each of them counts as slow if this median is. Without the
    reference of the quiet machine the probes show nothing, and the state is "clear".
    """
    reports = _probes(sessions)
    total = sum(report["number"] for report in reports)
    if reports and total < FEWEST_PROBES:
        return "unknown"
    for part in SLOWDOWN_LIMITS:
        if 2 * sum(report["number"] for report in reports if _is_slow(report, part)) > total:
            return "contended"
    return "clear"


def _probes(sessions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the reports on probes of the sessions whose machine has a reference."""
    reports = [(session.get("contention") or {}).get("probes") or {} for session in sessions]
    return [report for report in reports if report.get("reference")]


def _is_slow(report: Mapping[str, Any], part: str) -> bool:
    return bool(report["median"][part] > SLOWDOWN_LIMITS[part] * report["reference"][part])
