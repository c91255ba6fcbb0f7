"""The caveats of a setting: lines of text that name the data, the machine and the limits of its results."""

import math
import textwrap

import pandas as pd

from rmsexp import config
from rmsexp.config import score
from rmsexp.records.frames import names, quantities, statistics
from rmsexp.records.frames.load import Records

LISTED = 4  # a line names at most this many runs, and then says how many more there are
WIDTH = 90  # characters to which the remark in parentheses after a run's name is shortened


def caveats(records: Records) -> list[str]:
    """Return lines on data, machine, code, each reason for caution, quantities without values, and what tables compare.

    Raises: ValueError if no run names a target metric.
    """
    runs, step, target = records.runs, statistics.common_step(records), statistics.target(records)
    status, excluded = runs["status"], "excluded from means in tables, and in curves if the norm has other runs"
    last = statistics.evaluations(records, target.split, target.metric).groupby("folder")["step"].max()
    ends = runs["folder"].map(last)
    reasons = {  # by heading: which runs it is about, and the remark on each, whose fields are columns of the runs
        f"diverged (marked x; {excluded})": (status == "diverged", "at step {step}"),
        f"failed ({excluded})": (status == "failed", "{error}"),
        f"not compared, since too short (the others are compared at step {step})": (ends < (step or 0), "step {step}"),
        f"longer than the shortest runs, where the tables compare (step {step})": (
            (ends > (step or math.inf)) & (not target.scored),
            "step {step}",
        ),
        "shorter than the recipe": (_are_short(runs), "{status}, {step} of {recipe_steps:.0f} steps"),
        "time excluded from means if the norm has other runs (pale; to compare times, repeat these on idle cores)": (
            runs["time_state"] != "undisturbed",
            "{time_state}",
        ),
        "made with uncommitted changes, so they cannot be repeated from the commit alone": (
            runs["dirty"].eq(True),
            "commit {commits}",
        ),
    }
    datasets = ", ".join(_distinct(runs["dataset"])) or "unknown data"
    builtin = f"built-in data ({datasets}){config.papers_scale(runs['task'].iloc[0])}"
    commits = sorted({commit for text in _distinct(runs["commits"]) for commit in text.split(", ")})
    if unknown := int(runs["commits"].isna().sum()):
        commits.append(f"unknown for {unknown} of {len(runs)} runs")
    lines = [builtin if runs["builtin"].eq(True).any() else f"data: {datasets}", _machine(runs)]
    lines.append(f"commits: {', '.join(commits)}")
    lines += [_run_list(heading, runs[concerned], remark) for heading, (concerned, remark) in reasons.items()]
    lines += [quantities.missing(records), _compared(target, step)]
    return [line for line in lines if line]


def warnings(records: Records) -> list[str]:
    """Return a few words for each reason for caution; :func:`caveats` has the details."""
    runs = records.runs
    statuses = runs["status"][runs["status"] != "finished"].value_counts().sort_index()
    disturbed, short = int((runs["time_state"] != "undisturbed").sum()), int(_are_short(runs).sum())
    mixed = ("impl", "device", "threads", "precision", "torch", "dataset")
    return [
        *(["built-in data"] if runs["builtin"].eq(True).any() else []),
        *(f"{count} of {len(runs)} runs {status}" for status, count in statuses.items()),
        *([f"time of {disturbed} of {len(runs)} runs disturbed or unknown"] if disturbed else []),
        *([f"{short} of {len(runs)} runs shorter than the recipe"] if short else []),
        *(f"{column} mixed" for column in mixed if runs[column].nunique() > 1),
        *[f"problems with the records: {len(records.problems)}"] * bool(records.problems),
    ]


def _are_short(runs: pd.DataFrame) -> pd.Series:
    return (runs["step"] < runs["recipe_steps"]) & (runs["status"] != "diverged")


def _compared(target: statistics.Target, step: int | None) -> str:
    """Return a line on what the tables compare; "" if ``step``, the common step, is None."""
    if step is None:
        return ""
    if target.scored:
        metric = names.metric_label(target.metric)
        mean = f"tables compare scores: the mean of a run's last {score.SCORED} evaluations on all of {target.split}"
        return f"{mean}; curves are of {names.on_split(names.SAMPLE, target.metric, metric)}"
    return f"tables compare at step {step}, the last at which all averaged runs were evaluated"


def _machine(runs: pd.DataFrame) -> str:
    """Return a line on implementation, precision, device (with its id where names are ambiguous), threads and torch."""
    machines = runs[["device", "machine"]].dropna().astype(str).drop_duplicates()
    ambiguous = machines["device"].duplicated(keep=False)
    devices = machines["device"].where(~ambiguous, machines["device"] + " (" + machines["machine"] + ")")
    parts = {key: _distinct(runs[key]) for key in ("impl", "precision")} | {"device": sorted(devices)}
    parts |= {"threads": [f"{float(count):.0f}" for count in _distinct(runs["threads"])]}
    parts |= {"torch": _distinct(runs["torch"])}
    shown = {name: values for name, values in parts.items() if (name, values) != ("precision", [names.FLOAT32])}
    return "; ".join(f"{name} {', '.join(values) or 'unknown'}" for name, values in shown.items())


def _distinct(values: pd.Series) -> list[str]:
    return sorted(set(values.dropna().astype(str)))


def _run_list(heading: str, runs: pd.DataFrame, remark: str) -> str:
    """Return a line such as "diverged: RMSNorm seed 1 (at step 120), and 3 more"; empty if ``runs`` is empty.

    ``remark``: a format string for the text in parentheses, whose fields are columns of ``runs``.
    """
    if runs.empty:
        return ""
    listed = [
        f"{names.label(run['series'])} seed {run['seed']} ({textwrap.shorten(remark.format_map(run), WIDTH)})"
        for run in runs.head(LISTED).to_dict("records")
    ]
    more = [f"and {len(runs) - LISTED} more"] if len(runs) > LISTED else []
    return f"{heading}: {', '.join([*listed, *more])}"
