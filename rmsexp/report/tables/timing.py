"""The table of a timing record: step times, savings beside those of the paper, parts of a step, memory."""

from __future__ import annotations

import pandas as pd

from rmsexp.records.frames.names import label
from rmsexp.records.frames.timing_records import PARTS, labels, saving
from rmsexp.report import paper
from rmsexp.report.tables import formats


def readable(timings: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one record as text, with the paper's savings where they are comparable.

    ``timings``: rows of :func:`rmsexp.records.frames.timing_records.load`.
    """
    task, reference = timings["task"].iloc[0], timings["reference"].iloc[0]
    published = paper.select(task, "saving_vs_ln")  # of whole training steps with eager norms, against LayerNorm
    rows = []
    for name, row in zip(labels(timings), timings.to_dict("records"), strict=True):
        comparable = (row["kind"], reference, row["impl"]) == ("steps", "ln", "eager")
        paper_savings = published.loc[(published["norm"] == row["series"]) & comparable, "value"]
        is_reference = row["series"] == reference
        ratios = ", ".join(f"{100 * (1 - ratio):z.1f}" for ratio in row["estimates"])
        cells = {
            "norm": name,
            "ms per step, median (quartiles)": formats.median_and_range(
                row["median_seconds_per_1k_steps"], row["q25"], row["q75"]
            ),
            f"saving vs {label(reference)} (95 % interval)": (
                "reference" if is_reference else formats.saving(*saving(row))
            ),
            "saving in each process": "" if is_reference else f"{ratios} %",
            "paper": " / ".join(map(formats.saving, paper_savings)),
            "forward / backward / update, ms": " / ".join(
                f"{row[part]:.4g}" for part in PARTS if not pd.isna(row[part])
            ),
            "memory that a step adds, at most, MB": (
                "" if pd.isna(row["peak_bytes"]) else f"{row['peak_bytes'] / 1e6:.0f}"
            ),
        }
        rows.append(cells)
    return pd.DataFrame(rows)
