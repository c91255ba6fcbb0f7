"""One row a series: quality at the common step, time per step, and the saving against LN."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from rich.table import Table

from rmsexp import record
from rmsexp.compare.records import names, speed, statistics
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables import formats, markup

SECONDS = [f"seconds_{bucket}" for bucket in record.BUCKETS]


def table(records: Records, task: str, setting: str) -> pd.DataFrame:
    """Numbers as stored (fractions, seconds), one row a series.

    ``final``: mean of ``metric`` at ``compared_at_step``; ``best_on_<split>``: of each run's best up to there;
    ``_sd`` over seeds, ``_interval`` half the 95 % t-interval (from three seeds on). ``saving_vs_ln`` is unpaired.
    """
    records = records.of(task, setting)
    step, aim = statistics.common_step(records), statistics.target(records)
    speeds = [speed.speed(records, series) for series in names.in_order(records.runs["series"])]
    final, best = statistics.final_metric(records, step), statistics.best_metric(records, step)
    last = records.metrics.groupby("folder", observed=True)[SECONDS].last()
    rows = []
    for own in speeds:
        runs = records.runs[records.runs["series"] == own.series]
        saved, why = speed.saving(own, speeds)
        row: dict[str, Any] = {
            "label": names.label(own.series),
            "series": own.series,
            "norm": runs["norm"].iloc[0],
            "impl": own.impl,
            "seeds": len(runs),
            "status": _status(runs),
            "steps_min": runs["step"].min(),
            "steps_max": runs["step"].max(),
            "recipe_steps": runs["recipe_steps"].max(),
            "metric": f"{aim.split} {aim.metric}",
            "compared_at_step": step,
            **_estimate("final", final, runs),
            **_estimate(f"best_on_{aim.selection}", best, runs),
            "seconds_per_1k_steps": own.median,
            "seconds_per_1k_steps_q25": own.low,
            "seconds_per_1k_steps_q75": own.high,
            "time_state": own.state,
            "saving_vs_ln": saved,
            "saving_note": why,
        }
        timed = runs[runs["time_state"] == "clear"]
        rows.append(row | last.reindex((runs if timed.empty else timed)["folder"]).mean().to_dict())
    return pd.DataFrame(rows)


def _status(runs: pd.DataFrame) -> str:
    """Such as "2 finished, 1 diverged at step 120"."""
    parts = []
    for status, some in runs.groupby("status"):
        where = " at step " + ", ".join(map(str, sorted(set(some["step"])))) if status in statistics.LOST else ""
        parts.append(f"{len(some)} {status}{where}")
    return ", ".join(sorted(parts, key=lambda part: "finished" not in part))


def _estimate(name: str, values: pd.Series, runs: pd.DataFrame) -> dict[str, float]:
    mean, sd, interval = statistics.estimate(values.reindex(runs["folder"]).to_numpy(float))
    return {name: mean, f"{name}_sd": sd, f"{name}_interval": interval}


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """The summary as a person reads it: percent, plus or minus, and reasons instead of missing savings."""
    first = table.iloc[0]
    best = next(name for name in map(str, table.columns) if name.startswith("best_on_"))
    step = formats.NO_VALUE if pd.isna(first["compared_at_step"]) else int(first["compared_at_step"])
    rows: list[dict[str, Any]] = [
        {
            "norm": row["label"],
            "runs": row["status"],
            "steps": _range(row["steps_min"], row["steps_max"]),
            f"{' '.join(map(names.metric, row['metric'].split()))} at step {step}": _quality(row, "final"),
            best.replace("_", " "): _quality(row, best),
            "seconds per 1k steps, median (quartiles)": _speed(row),
            "saving vs LN (unpaired)": _saving(row),
        }
        for row in _rows(table)
    ]
    return pd.DataFrame(rows)


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [dict(zip(map(str, table.columns), values, strict=True)) for values in table.itertuples(index=False)]


def _range(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def _quality(row: dict[str, Any], name: str) -> str:
    factor, unit = names.scale_and_unit(row["metric"].split()[-1])
    if math.isnan(row[name]):
        return formats.NO_VALUE
    text = formats.four_digits(row[name] * factor)
    if not math.isnan(row[f"{name}_interval"]):
        text += f" ± {row[f'{name}_interval'] * factor:.2g}"
    if not math.isnan(row[f"{name}_sd"]):
        text += f" (sd {row[f'{name}_sd'] * factor:.2g})"
    return f"{text} {unit}".rstrip()


def _speed(row: dict[str, Any]) -> str:
    median, low, high = (row[f"seconds_per_1k_steps{part}"] for part in ("", "_q25", "_q75"))
    if math.isnan(median):
        return formats.NO_VALUE
    flag = "" if "clear" in row["time_state"] else f", {row['time_state']}"
    return f"{formats.four_digits(median)} ({formats.four_digits(low)} to {formats.four_digits(high)}{flag})"


def _saving(row: dict[str, Any]) -> str:
    if math.isnan(row["saving_vs_ln"]):
        return f"{formats.NO_VALUE} ({row['saving_note']})"
    return "reference" if row["saving_note"] == "reference" else f"{row['saving_vs_ln'] * 100:.1f} %"


def to_markdown(table: pd.DataFrame, title: str, captions: list[str]) -> str:
    """The readable summary, where the seconds went, and the captions as a list."""
    buckets = table[["label", *SECONDS]].round(2).rename(columns={f"seconds_{name}": name for name in record.BUCKETS})
    parts = [
        f"# {title}",
        markup.markdown(readable(table)),
        "Seconds in each of the clock's buckets, mean over the runs whose time counts (all, where none does); "
        "the time axis of every curve is data + train:",
        markup.markdown(
            buckets.rename(columns={"label": "norm"}).astype(object).where(buckets.notna().to_numpy(), formats.NO_VALUE)
        ),
        "\n".join(f"- {line}" for line in captions),
    ]
    return "\n\n".join(parts) + "\n"


def for_terminal(table: pd.DataFrame) -> Table:
    """The main columns for the end of a sweep, narrow enough for 80 characters; reasons are in ``summary.md``."""
    text = readable(table).drop(columns="steps")
    text.columns = ["norm", "runs", *text.columns[2:4], "s per 1k steps", "vs LN"]
    text["s per 1k steps"] = table["seconds_per_1k_steps"].map(
        lambda s: formats.NO_VALUE if math.isnan(s) else formats.four_digits(s)
    )
    text["vs LN"] = text["vs LN"].str.split(" \\(").str[0]
    shown = Table()
    for column in text:
        shown.add_column(str(column))
    for row in text.to_numpy().tolist():
        shown.add_row(*row)
    return shown
