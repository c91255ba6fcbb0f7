"""Ratios of the times of layers, from records of python -m rmsexp.bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from readme_blocks.evidence import Evidence
from readme_blocks.text import listed, machine, paragraphs, plural, sentences
from rmsexp.commands import bench
from rmsexp.records.frames import benchmarks, timing_records
from rmsexp.records.frames.benchmarks import Measured, Summary
from rmsexp.report.tables import bench as bench_table
from rmsexp.report.tables import markup
from rmsexp.rules.ratios import FEWEST_ROUNDS, paired_ratio

UNCLEAN = "../results/README.md#which-code-made-the-records"


def norms(evidence: Evidence) -> str:
    return _tables(evidence, "norms")


def recurrences(evidence: Evidence) -> str:
    return _tables(evidence, "recurrences")


def of_torch(evidence: Evidence) -> str:
    """How long torch's RMSNorm takes, relative to its LayerNorm, on each machine, as a sentence."""
    found: dict[str, float] = {}
    for contents in evidence.benchmarks("norms").values():
        ratios = [
            paired_ratio(case["seconds"]["nn.RMSNorm"], case["seconds"]["nn.LayerNorm"]).ratio
            for case in contents[0]["measurements"]
            if case["passes"] == "forward + backward" and {"nn.RMSNorm", "nn.LayerNorm"} <= {*case["seconds"]}
        ]
        if ratios and "cpu" in contents[0]["session"].get("device_type", "cpu"):
            found[str(contents[0]["session"]["device"])] = float(np.exp(np.mean(np.log(ratios))))
    each = listed([f"{value:.1f} times ({name})" for name, value in found.items()])
    return f"On CPUs PyTorch's own `nn.RMSNorm` takes {each} as long as its `nn.LayerNorm`, forward and backward."


def _tables(evidence: Evidence, what: str) -> str:
    """Return the tables of ratios over all shapes of the newest record on each machine, and over repeated records."""
    parts = []
    for place, contents in evidence.benchmarks(what).items():
        newest = contents[0]
        dirty = f"Measured with [uncommitted changes]({UNCLEAN})." if newest["session"]["git"]["dirty"] else ""
        part = "Interrupted: not all shapes were measured." if newest.get("stopped") == "interrupted" else ""
        where = f"{machine(newest)} (`{place}`)"
        for summary in bench.SUMMARIES[what]:
            cases = _cases(summary, newest)
            measured = [Measured(case, benchmarks.rows(case["seconds"], case["reference"])) for case in cases]
            for table in bench_table.summaries([summary], measured).values():
                title = f"**{summary.passes.capitalize()}**, {where}."
                parts += [sentences(title, _method(cases), _state(cases), dirty, part), markup.markdown(table)]
        for summary in bench.SUMMARIES[what] if len(contents) > 1 else ():
            title = (
                f"**{summary.passes.capitalize()}, {len(contents)} such measurements**, {where}: medians of the ratios "
                "(lowest to highest)."
            )
            every = [case for content in contents for case in _cases(summary, content)]
            parts += [sentences(title, _state(every)), markup.markdown(_medians(summary, every))]
    return paragraphs(*parts)


def _cases(summary: Summary, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the measurements of a record that a summary is about."""
    stored = content["measurements"]
    return [case for case in stored if case["passes"] == summary.passes and case["elements"] >= summary.elements]


def _state(cases: Sequence[dict[str, Any]]) -> str:
    """Return the time state of measurements, as a sentence."""
    unclear = "; ".join(benchmarks.heading(case) for case in cases if benchmarks.contention(case))
    return f"Time state: clear, except {unclear}." if unclear else "Time state: clear."


def _method(stored: Sequence[Mapping[str, Any]]) -> str:
    """Return how the cases of a record were measured; intervals of few rounds are named as in reports of steps."""
    rounds = [len(times) for case in stored for times in case["seconds"].values()]
    least, most = min(rounds), max(rounds)
    counts = plural(least, "round") if least == most else f"{least} to {most} rounds"
    few = f"; intervals of fewer than {FEWEST_ROUNDS} rounds are less reliable" if least < FEWEST_ROUNDS else ""
    return f"Interleaved, {counts}, {timing_records.replication(1)}{few}."


def _medians(summary: Summary, cases: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return a row for each shape: the medians of the ratios that several records have found, and their ranges."""
    ratios: dict[str, dict[str, list[float]]] = {}
    for case in cases:
        columns = ratios.setdefault(case["shape"], {})
        for layer, reference in summary.pairs:
            ratio = paired_ratio(case["seconds"][layer], case["seconds"][reference]).ratio
            columns.setdefault(f"{layer} / {reference}", []).append(ratio)
    return pd.DataFrame(
        {"shape": shape}
        | {name: f"{np.median(found):.3f} ({min(found):.3f} to {max(found):.3f})" for name, found in columns.items()}
        for shape, columns in ratios.items()
    )
