"""Times of training runs: seconds per 1k steps."""

from __future__ import annotations

import pandas as pd

from rmsexp.records.frames.load import Records


def seconds_per_1k_steps(records: Records) -> pd.DataFrame:
    """Return the seconds per 1k steps between consecutive training rows of a run: columns ``folder`` and ``seconds``.

    Pairs of rows without a time, or whose step does not increase, are left out.
    """
    rows = records.metrics[["folder", "split", "step", "time"]]
    rows = rows[rows["split"] == "train"]
    between = rows.groupby("folder", observed=True)[["step", "time"]].diff().dropna()
    between = between[between["step"] > 0]
    seconds = between["time"] / between["step"] * 1000
    return pd.DataFrame({"folder": rows.loc[between.index, "folder"].astype(object), "seconds": seconds})


def time_unit(longest: float) -> tuple[str, float]:
    """Return the unit (hours, minutes or seconds) for times of up to ``longest`` seconds, and its length in seconds."""
    if longest > 3 * 3600:
        return "hours", 3600.0
    return ("minutes", 60.0) if longest > 300 else ("seconds", 1.0)
