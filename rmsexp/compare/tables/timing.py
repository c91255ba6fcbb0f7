"""Records of ``python -m rmsexp.timing``: step times of norms that took turns in one process, as paired ratios.

A record is ``<results>/<task>/<setting>/timing/<kind><number>/timing.json``. Everything that is said of it is computed
here from the seconds of its blocks.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pandas as pd

from rmsexp.compare import paper
from rmsexp.compare.paper import matching
from rmsexp.compare.records import timing_records
from rmsexp.compare.records.names import label


def readable(timings: pd.DataFrame) -> pd.DataFrame:
    """One record's rows as a person reads them, and the paper's savings beside."""
    task, reference = timings["task"].iloc[0], timings["reference"].iloc[0]
    theirs = paper.savings(task if matching.savings_are_comparable(timings) else "")
    found = []
    for name, alike, row in zip(
        timing_records.labels(timings), timing_records.like_reference(timings), timings.to_dict("records"), strict=True
    ):
        of_paper = theirs.loc[(theirs["norm"] == row["norm"]) & alike, "saving"]
        found.append(
            {
                "norm": name,
                "ms per step, median (quartiles)": _spread(row),
                f"saving vs {label(reference)} (95 % interval)": _saving(row),
                "paper": " / ".join(f"{100 * saving:.1f} %" for saving in of_paper),
                "forward / backward / update, ms": _parts(row),
                "peak memory, MB": "" if pd.isna(row["peak_bytes"]) else f"{row['peak_bytes'] / 1e6:.0f}",
            }
        )
    return pd.DataFrame(found)


def _spread(row: dict[Hashable, Any]) -> str:
    return f"{row['median_seconds_per_1k_steps']:.4g} ({row['q25']:.4g} to {row['q75']:.4g})"


def _saving(row: dict[Hashable, Any]) -> str:
    if row["series"] == row["reference"]:
        return "reference"
    saved, low, high = (100 * share for share in timing_records.saving(row))
    return f"{saved:.1f} % ({low:.1f} to {high:.1f})"


def _parts(row: dict[Hashable, Any]) -> str:
    return " / ".join(f"{row[part]:.4g}" for part in timing_records.PARTS if not pd.isna(row[part]))
