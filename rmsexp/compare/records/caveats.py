"""What must be said beside every figure and table of a setting, so that no reader takes it for more than it is."""

from __future__ import annotations

import textwrap

import pandas as pd

from rmsexp.compare.records import names, statistics
from rmsexp.compare.records.load import Records

LISTED = 4  # runs that a note names before it only counts
WIDTH = 90  # characters of what it says of each


def caveats(records: Records) -> list[str]:
    """The data, the machine, and every reason for caution, one line each."""
    runs, step = records.runs, statistics.common_step(records)
    status = runs["status"]
    short = (runs["step"] < runs["recipe_steps"]) & (status != "diverged")
    lines = [
        _data(runs),
        _machine(runs),
        _listed("diverged (marked x; not in means that have other runs)", runs[status == "diverged"], "at step {step}"),
        _listed("failed (not in means that have other runs)", runs[status == "failed"], "{error}"),
        _listed("shorter than the recipe", runs[short], "{status}, {step} of {recipe_steps:.0f} steps"),
        _listed("time not counted (dashed)", runs[runs["time_state"] != "clear"], "{time_state}"),
        "" if step is None else f"tables compare at step {step}, the last that every run in the means was evaluated at",
    ]
    return [line for line in lines if line]


def _data(runs: pd.DataFrame) -> str:
    names = ", ".join(_distinct(runs["dataset"])) or "unknown data"
    if runs["builtin"].eq(True).any():
        return f"built-in data ({names}); the paper's setting: scale=paper"
    return f"data: {names}"


def _machine(runs: pd.DataFrame) -> str:
    threads = ", ".join(f"{float(count):.0f}" for count in _distinct(runs["threads"]))
    parts = {
        "impl": ", ".join(_distinct(runs["impl"])),
        "device": ", ".join(_distinct(runs["device"])),
        "threads": threads,
        "torch": ", ".join(_distinct(runs["torch"])),
    }
    return "; ".join(f"{name} {value or 'unknown'}" for name, value in parts.items())


def _distinct(values: pd.Series) -> list[str]:
    return sorted(set(values.dropna().astype(str)))


def _listed(what: str, runs: pd.DataFrame, template: str) -> str:
    """Such as "diverged: no norm seed 1 (at step 120), and 3 more"; nothing where there is no such run."""
    named = [
        f"{names.label(run['series'])} seed {run['seed']} ({textwrap.shorten(template.format_map(run), WIDTH)})"
        for run in runs.head(LISTED).to_dict("records")
    ]
    if len(runs) > LISTED:
        named.append(f"and {len(runs) - LISTED} more")
    return f"{what}: {', '.join(named)}" if named else ""
