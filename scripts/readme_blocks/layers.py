"""Ratios of the times of layers, from records of python -m rmsexp.bench."""

from __future__ import annotations

from readme_blocks.evidence import Evidence
from readme_blocks.text import machine, paragraphs, sentences
from rmsexp import bench
from rmsexp.compare.records import benchmarks
from rmsexp.compare.records.benchmarks import Measured
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
        contended = [benchmarks.heading(case) for case in stored if case["contention"]["state"] != "clear"]
        doubt = f"Other work slowed these measurements: {'; '.join(contended)}." if contended else ""
        for heading, table in bench_table.summaries(bench.SUMMARIES[what], measured).items():
            title = f"**{heading.removeprefix('Ratios, ').capitalize()}**, {machine(content)} (`{place}`)."
            parts += [sentences(title, doubt), markup.markdown(table)]
    return paragraphs(*parts)
