"""Ratios of the times of layers, from records of python -m rmsexp.bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from readme_blocks.evidence import Evidence
from readme_blocks.text import machine, paragraphs, plural, sentences
from rmsexp import bench
from rmsexp.compare.records import benchmarks, timing_records
from rmsexp.compare.records.benchmarks import Measured
from rmsexp.compare.records.comparable import FEWEST_ROUNDS
from rmsexp.compare.tables import bench as bench_table
from rmsexp.compare.tables import markup


def norms(evidence: Evidence) -> str:
    return _tables(evidence, "norms")


def recurrences(evidence: Evidence) -> str:
    return _tables(evidence, "recurrences")


def _tables(evidence: Evidence, what: str) -> str:
    """Return the tables of ratios over all shapes of the newest record on each machine."""
    parts = []
    for place, content in evidence.benchmarks(what).items():
        stored = content["measurements"]
        measured = [Measured(case, benchmarks.rows(case["seconds"], case["reference"])) for case in stored]
        unclear = "; ".join(benchmarks.heading(case) for case in stored if benchmarks.contention(case))
        state = f"Time state: clear, except {unclear}." if unclear else "Time state: clear."
        for heading, table in bench_table.summaries(bench.SUMMARIES[what], measured).items():
            title = f"**{heading.removeprefix('Ratios, ').capitalize()}**, {machine(content)} (`{place}`)."
            parts += [sentences(title, _method(stored), state), markup.markdown(table)]
    return paragraphs(*parts)


def _method(stored: Sequence[Mapping[str, Any]]) -> str:
    """Return how the cases of a record were measured; intervals of few rounds are named as in reports of steps."""
    rounds = [len(times) for case in stored for times in case["seconds"].values()]
    least, most = min(rounds), max(rounds)
    counts = plural(least, "round") if least == most else f"{least} to {most} rounds"
    few = f"; intervals of fewer than {FEWEST_ROUNDS} rounds are less reliable" if least < FEWEST_ROUNDS else ""
    return f"Interleaved, {counts}, {timing_records.replication(1)}{few}."
