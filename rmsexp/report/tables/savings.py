"""Time per step, and the time that norms save, both measured interleaved.

There is a table for each clock (:mod:`rmsexp.records.frames.comparable`). Norm layers alone have tables of their own.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rmsexp.records.frames import comparable, names, timing_records
from rmsexp.report import paper
from rmsexp.report.tables import formats
from rmsexp.report.tables.markup import Table

COLUMNS = [
    *("series", "impl", "baseline", "seconds_per_1k_steps", "q25", "q75", "saving", "low", "high"),
    *("kind", "processes", "rounds", "note", "timed", "machine", "threads", "precision", "torch", "code"),
]


def tables(timings: pd.DataFrame) -> Iterator[Table]:
    """Yield the tables of the timing records of a setting, and last the list of the records.

    They are: against LayerNorm of the same implementation, fused against eager, and layers alone. In the numbers, with
    columns ``COLUMNS``, ``saving`` is the fraction of the baseline's time per step, with its interval. ``kind``:
    "reference" for the baseline; "paired" for a saving of norms that were timed together; "quotient" for one from
    processes that timed either the series or its baseline, each beside the reference. ``timed``: "steps", or "layers"
    if the times are those of the norm layers in a step alone.
    """
    if timings.empty:
        return
    step, layers = "Time per step, and savings relative to", "Time of the norm layers in a step alone, and savings"
    whole, alone = (comparable.comparisons(timings, kind=kind) for kind in timing_records.KINDS)
    fused = comparable.fused_against_eager(timings)
    found = [(f"{step} LayerNorm", comparison) for comparison in whole]
    found += [(f"{step} the eager norm", comparison) for comparison in fused]
    found += [(f"{layers} relative to LayerNorm", comparison) for comparison in alone]
    for number, (what, comparison) in enumerate(found, 1):
        ours = {"median_seconds_per_1k_steps": "seconds_per_1k_steps", "kind": "timed"}
        numbers = comparison.rows.rename(columns=ours)
        is_baseline, is_quotient = numbers["series"] == numbers["baseline"], numbers["quotient"]
        numbers["kind"] = np.select([is_baseline, is_quotient], ["reference", "quotient"], "paired")
        numbers["note"] = numbers["time_state"].replace("undisturbed", "")
        numbers[["saving", "low", "high"]] = [timing_records.saving(row) for row in comparison.rows.to_dict("records")]
        numbers = numbers[COLUMNS]
        title = f"{what} ({comparable.clock(comparison)})"
        yield Table("saving" if number == 1 else f"saving_{number}", title, numbers, readable(numbers))
    listed = timing_table(timings, [*whole, *alone], fused)
    yield Table("timings", "Timing records", listed, listed)


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table as text."""
    is_mixed, rows = table["impl"].nunique() > 1, []
    for name, row in zip(timing_records.labels(table), table.to_dict("records"), strict=True):
        note = ", ".join(filter(None, (row["kind"], row["note"])))
        saving = f"{formats.saving(row['saving'], row['low'], row['high'])}, {note}"
        times = (row["seconds_per_1k_steps"], row["q25"], row["q75"])
        cells = {
            "norm": name,
            "seconds per 1k steps, median (quartiles)": formats.median_and_range(*times),
            f"saving vs {'the eager norm' if is_mixed else 'LayerNorm'}": (
                "reference" if row["kind"] == "reference" else saving
            ),
            "processes, rounds": _replication(row),
        }
        rows.append(cells)
    return pd.DataFrame(rows)


def _replication(row: dict[Any, Any]) -> str:
    return f"{timing_records.replication(int(row['processes']))}, {row['rounds']:.0f} rounds"


def timing_table(
    timings: pd.DataFrame, compared: Sequence[comparable.Comparison], fused: Sequence[comparable.Comparison]
) -> pd.DataFrame:
    """Return the timing records of a setting as text, with the savings of each and why it is not in the tables.

    Records that lack LayerNorm in the same implementation come last; they may be in a table of fused against eager
    norms.
    """
    rows, listed = [], set()
    for comparison in compared:
        shared = comparison.rows.iloc[0][["impl", "machine", "processor", "threads"]].to_dict()
        for record in comparison.records.to_dict("records"):
            listed.add(record["folder"])
            ratios = {names.without_impl(series): ratio._asdict() for series, ratio in record["ratios"].items()}
            ratios.pop("ln", None)
            saved = [
                f"{names.label(name)} {formats.saving(*timing_records.saving(ratio))}" for name, ratio in ratios.items()
            ]
            rows.append(_listed_record(record | shared, ", ".join(saved), record["left_out"]))
    left_out = {record["folder"]: record["left_out"] for found in fused for record in found.records.to_dict("records")}
    for folder, own in timings[~timings["folder"].isin(listed)].groupby("folder", sort=False):
        shared = {"impl": " and ".join(sorted(set(own["impl"])))} | own[["processes", "rounds"]].min().to_dict()
        reason = left_out.get(str(folder), "LayerNorm, or another norm of its implementation, was not timed")
        rows.append(_listed_record(own.iloc[0].to_dict() | shared, formats.NO_VALUE, reason))
    return pd.DataFrame(rows)


def _listed_record(record: dict[Any, Any], saved: str, left_out: str) -> dict[str, str]:
    return {
        "record": Path(record["folder"]).name,
        "impl": record["impl"],
        "machine, threads": f"{comparable.machine(record)}, {comparable.threads(record['threads'])}",
        "date": str(record["started"])[:10],
        "commit": comparable.commit(record),
        "processes, rounds": _replication(record),
        "clock": record["time_state"],
        "saving vs LayerNorm (95 % interval)": saved,
        "in the tables above": f"no: {left_out}" if left_out else "yes",
    }


def of_record(timings: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one record as text, with the paper's savings where they are comparable."""
    task, reference = timings["task"].iloc[0], timings["reference"].iloc[0]
    published = paper.select(task, "saving_vs_ln")  # of whole training steps with eager norms, against LayerNorm
    rows = []
    for name, row in zip(timing_records.labels(timings), timings.to_dict("records"), strict=True):
        comparable = (row["kind"], reference, row["impl"]) == ("steps", "ln", "eager")
        paper_savings = published.loc[(published["norm"] == row["series"]) & comparable, "value"]
        is_reference = row["series"] == reference
        saved = "reference" if is_reference else formats.saving(*timing_records.saving(row))
        each = ", ".join(f"{100 * (1 - ratio):z.1f}" for ratio in row["estimates"])
        parts = [f"{row[part]:.4g}" for part in timing_records.PARTS if not pd.isna(row[part])]
        times = (row["median_seconds_per_1k_steps"], row["q25"], row["q75"])
        memory = "" if pd.isna(row["peak_bytes"]) else f"{row['peak_bytes'] / 1e6:.0f}"
        cells = {
            "norm": name,
            "ms per step, median (quartiles)": formats.median_and_range(*times),
            f"saving vs {names.label(reference)} (95 % interval)": saved,
            "saving in each process": "" if is_reference else f"{each} %",
            "paper": " / ".join(map(formats.saving, paper_savings)),
            "forward / backward / update, ms": " / ".join(parts),
            "memory that a step adds, at most, MB": memory,
        }
        rows.append(cells)
    return pd.DataFrame(rows)
