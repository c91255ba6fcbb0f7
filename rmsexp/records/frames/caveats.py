"""The caveats of a setting: lines of text that name the data, the machine and the limits of its results."""

from __future__ import annotations

import math
import textwrap

import pandas as pd

from rmsexp import config
from rmsexp.config import score
from rmsexp.records.frames import names, quantities, statistics
from rmsexp.records.frames.load import Records

LISTED = 4  # a line names at most this many runs, and then says how many more there are
WIDTH = 90  # characters to which the remark in parentheses after a run's name is shortened


def caveats(records: Records, times: bool = True, tables: bool = True) -> list[str]:
    """Return a line on the data, one on the machine, one on the code, one per reason for caution, and one on the step.

    ``times`` and ``tables``: whether the times of the runs, and tables of their metrics, are shown.

    Raises:
        ValueError: no run names a target metric.
    """
    runs, step = records.runs, statistics.common_step(records)
    status = runs["status"]
    short = (runs["step"] < runs["recipe_steps"]) & (status != "diverged")
    ends = _last_evaluations(records)
    lines = [
        _data(runs),
        _machine(runs),
        _commits(runs),
        _run_list(
            "diverged (marked x; excluded from means in tables, and in curves if the norm has other runs)",
            runs[status == "diverged"],
            "at step {step}",
        ),
        _run_list(
            "failed (excluded from means in tables, and in curves if the norm has other runs)",
            runs[status == "failed"],
            "{error}",
        ),
        _run_list(
            f"not compared, since too short (the others are compared at step {step})",
            runs[tables & (ends < (step or 0))],
            "step {step}",
        ),
        _run_list(
            f"longer than the shortest runs, where the tables compare (step {step})",
            runs[tables & (ends > (step or math.inf)) & (not statistics.target(records).scored)],
            "step {step}",
        ),
        _run_list("shorter than the recipe", runs[short], "{status}, {step} of {recipe_steps:.0f} steps"),
        _run_list(
            "time excluded from means if the norm has other runs (dashed)",
            runs[times & (runs["time_state"] != "clear")],
            "{time_state}",
        ),
        _run_list(
            "made with uncommitted changes, so they cannot be repeated from the commit alone",
            runs[runs["dirty"].eq(True)],
            "commit {commits}",
        ),
        quantities.missing(records),
        _compared(statistics.target(records), step) if tables else "",
    ]
    return [line for line in lines if line]


def _last_evaluations(records: Records) -> pd.Series:
    """Return the step of each run's last evaluation of the target, in the order of ``runs``; NaN without one."""
    target = statistics.target(records)
    last = statistics.evaluations(records, target.split, target.metric).groupby("folder")["step"].max()
    return records.runs["folder"].map(last)


def brief(records: Records) -> list[str]:
    """Return the data of the runs and their :func:`warnings`, as the caption of a figure."""
    data = f"data: {', '.join(_distinct(records.runs['dataset'])) or 'unknown'}"
    return [data, *warnings(records)]


def warnings(records: Records) -> list[str]:
    """Return a few words for each reason for caution; the notes have the details."""
    runs = records.runs
    states = runs["time_state"]
    states = states[states != "clear"].value_counts().sort_index()
    statuses = runs["status"][runs["status"] != "finished"].value_counts().sort_index()
    short = int(((runs["step"] < runs["recipe_steps"]) & (runs["status"] != "diverged")).sum())
    columns = ("impl", "device", "threads", "precision", "torch", "dataset")
    values = {column: runs[column].dropna().unique() for column in columns}
    return [
        *(["built-in data"] if runs["builtin"].eq(True).any() else []),
        *(f"{count} of {len(runs)} runs {status}" for status, count in statuses.items()),
        *(f"time of {count} of {len(runs)} runs excluded: {state}" for state, count in states.items()),
        *([f"{short} of {len(runs)} runs shorter than the recipe"] if short else []),
        *(f"{column} mixed" for column in values if len(values[column]) > 1),
        *([f"problems with the records: {len(records.problems)}"] if records.problems else []),
    ]


def _compared(target: statistics.Target, step: int | None) -> str:
    """Return what the tables compare. ``step``: the common step."""
    if step is None:
        return ""
    if target.scored:
        mean = f"tables compare scores: the mean of a run's last {score.SCORED} evaluations on all of {target.split}"
        return f"{mean}; curves of {names.split_label(names.INTERIM, target.metric).rstrip(':')}, are not part of it"
    return f"tables compare at step {step}, the last at which all averaged runs were evaluated"


def _data(runs: pd.DataFrame) -> str:
    datasets = ", ".join(_distinct(runs["dataset"])) or "unknown data"
    if runs["builtin"].eq(True).any():
        return f"built-in data ({datasets}){config.papers_scale(runs['task'].iloc[0])}"
    return f"data: {datasets}"


def _machine(runs: pd.DataFrame) -> str:
    threads = ", ".join(f"{float(count):.0f}" for count in _distinct(runs["threads"]))
    precisions = _distinct(runs["precision"])
    parts = {
        "impl": ", ".join(_distinct(runs["impl"])),
        **({} if precisions == [names.FLOAT32] else {"precision": ", ".join(precisions)}),
        "device": ", ".join(_devices(runs)),
        "threads": threads,
        "torch": ", ".join(_distinct(runs["torch"])),
    }
    return "; ".join(f"{name} {value or 'unknown'}" for name, value in parts.items())


def _devices(runs: pd.DataFrame) -> list[str]:
    """Return the names of the processors, with the identity of the machine where names do not tell machines apart."""
    known = runs[["device", "machine"]].dropna().astype(str).drop_duplicates()
    ambiguous = known["device"].duplicated(keep=False)
    return sorted(known["device"].where(~ambiguous, known["device"] + " (" + known["machine"] + ")"))


def _commits(runs: pd.DataFrame) -> str:
    commits = sorted({commit for text in _distinct(runs["commits"]) for commit in text.split(", ")})
    unknown = int(runs["commits"].isna().sum())
    parts = commits + [f"unknown for {unknown} of {len(runs)} runs"] * (unknown > 0)
    return f"commits: {', '.join(parts)}"


def _distinct(values: pd.Series) -> list[str]:
    return sorted(set(values.dropna().astype(str)))


def _run_list(heading: str, runs: pd.DataFrame, template: str) -> str:
    """Return a line such as "diverged: no norm seed 1 (at step 120), and 3 more"; empty if ``runs`` is empty.

    ``template``: the format of the remark in parentheses; its fields are columns of ``runs``.
    """
    listed = [
        f"{names.label(run['series'])} seed {run['seed']} ({textwrap.shorten(template.format_map(run), WIDTH)})"
        for run in runs.head(LISTED).to_dict("records")
    ]
    if len(runs) > LISTED:
        listed.append(f"and {len(runs) - LISTED} more")
    return f"{heading}: {', '.join(listed)}" if listed else ""
