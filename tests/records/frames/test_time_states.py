"""Whether other work slowed a timing down, judged from all of its processes together."""

from pathlib import Path
from typing import Any

import pytest
from helpers.records import load_timings, write_timing

from rmsexp.records.frames import timing_records
from rmsexp.records.frames.time_states import disturbed, timing_state

QUIET = {"arithmetic": 0.001, "memory": 0.002}


def process(
    number: int = 20,
    memory: float = 1.0,
    arithmetic: float = 1.0,
    *,
    state: str = "undisturbed",
    waited: float | None = 0.0,
    steal: float | None = 0.0,
    reference: dict[str, float] | None = QUIET,
) -> dict[str, Any]:
    """Return the session of a process. ``memory``, ``arithmetic``: by how much its probes exceed the reference."""
    median = {"arithmetic": 0.001 * arithmetic, "memory": 0.002 * memory}
    probes = {"number": number, "median": median, "reference": reference}
    return {"contention": {"state": state, "waited": waited, "steal": steal, "probes": probes}}


UNREADABLE = process(state="unknown", waited=None, steal=None)


@pytest.mark.parametrize(
    ("sessions", "state", "number"),
    [
        ([process()] * 6, "undisturbed", 0),
        # slow tasks have few probes in each process
        ([process(12, 2.0, 1.24)] * 6, "disturbed", 6),
        ([process(12, 1.0, 1.24)] * 6, "disturbed", 6),
        ([process(4, state="unknown")] * 6, "undisturbed", 0),
        ([process(3, state="unknown")] * 6, "unknown", 0),
        ([process(3, 2.0, state="unknown")] * 6, "unknown", 6),
        # one process of several does not mark the record
        ([process(20, 2.0, state="disturbed"), *[process()] * 5], "undisturbed", 1),
        ([process(20, 2.0, state="disturbed")] * 3 + [process()] * 3, "undisturbed", 3),
        ([process(20, 2.0, state="disturbed")] * 4 + [process()] * 2, "disturbed", 4),
        ([process(waited=0.03, state="disturbed"), *[process()] * 5], "undisturbed", 1),
        ([process(waited=0.1, state="disturbed"), *[process()] * 5], "disturbed", 1),
        ([process(steal=0.03, state="disturbed"), *[process()] * 5], "undisturbed", 1),
        ([process(steal=0.13, state="disturbed"), *[process()] * 5], "disturbed", 1),
        ([UNREADABLE, *[process()] * 5], "unknown", 0),
        ([UNREADABLE, *[process(20, 2.0)] * 5], "disturbed", 5),
        # without a reference, or in older records, without probes
        ([process(3, 2.0, reference=None)] * 6, "undisturbed", 0),
        ([{"contention": {"state": "undisturbed", "waited": 0.003, "steal": 0.0}}], "undisturbed", 0),
        ([process(waited=0.016)], "disturbed", 1),  # when the limit was 0.05
        ([{}], "unknown", 0),
    ],
)
def test_processes_of_a_timing_are_judged_together(sessions: list[dict[str, Any]], state: str, number: int) -> None:
    assert (timing_state(sessions), disturbed(sessions)) == (state, number)


@pytest.mark.parametrize("evidence", [{"shared": True}, {"based_on": ["waiting", "steal", "suspension"]}])
def test_a_shared_gpu_and_a_suspension_count_whatever_else_disturbed_the_process(evidence: dict[str, Any]) -> None:
    for waited in (0.001, 0.016):
        affected = process(state="disturbed", waited=waited)
        affected["contention"] |= evidence
        assert timing_state([*[process()] * 5, affected]) == "disturbed"


@pytest.mark.parametrize(
    ("sessions", "line"),
    [
        ([process()] * 3, None),
        ([process(20, 2.0), process(), process()], "1 of 3 processes disturbed"),
        ([process(20, 2.0), process(20, 2.0), process()], "2 of 3 processes disturbed: "),
    ],
)
def test_the_caption_counts_disturbed_processes(
    tmp_path: Path, sessions: list[dict[str, Any]], line: str | None
) -> None:
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.8] * 3}, sessions=sessions, precision="bfloat16")
    notes = timing_records.notes(load_timings(tmp_path))
    last = notes[-1]
    assert "precision bfloat16; " in notes[1]
    assert last.startswith(line) if line else "processes disturbed" not in last
