"""Whether something slowed a run or a timing down, from the sessions of its processes in a record."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rmsexp.records.record import FEWEST_PROBES, SLOWDOWN_LIMITS, STEAL_LIMIT, WAITED_LIMIT

OLD_WORDS = {"clear": "undisturbed", "contended": "disturbed"}  # of records until 29 November 2026


def run_state(sessions: Sequence[Mapping[str, Any]]) -> str:
    """Return "undisturbed" or "disturbed", the state of a run's time, from its sessions, the processes that trained it.

    It is undisturbed if it is known of each session that nothing slowed it down, and none is marked as not comparable
    because the machine, the software or the code changed during the run. Until 23 November 2026 the limit for waiting
    was 5 %. A session from before that whose threads waited for longer than ``WAITED_LIMIT`` allows now counts as
    disturbed, also if its record says otherwise.
    """
    found = [session.get("contention") or {} for session in sessions if session.get("comparable", True)]
    undisturbed = [_state(each) == "undisturbed" and (each.get("waited") or 0.0) <= WAITED_LIMIT for each in found]
    return "undisturbed" if len(undisturbed) == len(sessions) > 0 and all(undisturbed) else "disturbed"


def timing_state(sessions: Sequence[Mapping[str, Any]]) -> str:
    """Return the state of a timing's time, from the sessions of its processes, which are judged together.

    "disturbed": the mean of the processes' waiting or steal exceeds its limit, more than half of at least
    ``FEWEST_PROBES`` probes are of processes whose median was slow in the same part, or a process was disturbed for
    another reason, such as a shared GPU or its suspension. "unknown": not so, but the contention of a process is not
    recorded, or there were probes, but too few. Otherwise "undisturbed". The means have equal weights, because the
    processes of a timing measure for about equally long.
    """
    contentions = [session.get("contention") or {} for session in sessions]
    waited, steal = (statistics.fmean(each.get(key) or 0.0 for each in contentions) for key in ("waited", "steal"))
    alone = (
        each.get("shared")
        or "suspension" in each.get("based_on", ())
        or (_state(each) == "disturbed" and not _exceeds(each))
        for each in contentions
    )
    probed = [(each["probes"]["number"], slow) for each in contentions if (slow := _slow(each))]
    number = sum(count for count, _ in probed)
    slow_counts = [sum(count for count, slow in probed if slow[part]) for part in SLOWDOWN_LIMITS]
    enough = not probed or number >= FEWEST_PROBES
    mostly_slow = enough and 2 * max(slow_counts) > number
    if waited > WAITED_LIMIT or steal > STEAL_LIMIT or any(alone) or mostly_slow:
        return "disturbed"
    known = (_state(each) == "undisturbed" or each.get("waited") is not None for each in contentions)
    return "undisturbed" if enough and all(known) else "unknown"


def disturbed(sessions: Sequence[Mapping[str, Any]]) -> int:
    """Return how many processes were disturbed, each judged alone, even by the median of few probes."""
    contentions = (session.get("contention") or {} for session in sessions)
    return sum(_state(each) == "disturbed" or _exceeds(each) for each in contentions)


def _state(contention: Mapping[str, Any]) -> str | None:
    """Return the state that the process itself recorded, in the words of today; None if it recorded none."""
    state = contention.get("state")
    return OLD_WORDS.get(str(state), state)


def _exceeds(contention: Mapping[str, Any]) -> bool:
    """Return whether the waiting, the steal or the median of the probes of one process exceeds its limit."""
    waits = (contention.get("waited") or 0.0) > WAITED_LIMIT or (contention.get("steal") or 0.0) > STEAL_LIMIT
    return waits or any(_slow(contention).values())


def _slow(contention: Mapping[str, Any]) -> dict[str, bool]:
    """Return whether the median of a process's probes was slow, by part; {} without probes or a baseline speed."""
    probes = contention.get("probes") or {}
    if not (reference := probes.get("reference")):
        return {}
    return {part: probes["median"][part] > limit * reference[part] for part, limit in SLOWDOWN_LIMITS.items()}
