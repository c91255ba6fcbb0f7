"""Time per step and the share of LN's time that a norm saves: paired from a timing record, else from separate runs."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmsexp.compare import figures, published, stats, style, tables, timing
from rmsexp.compare.load import Records

COLUMNS = ["series", "impl", "seconds_per_1k_steps", "q25", "q75", "saving", "low", "high", "kind", "note"]
MARKERS = "sD^vP"  # of the paper's frameworks
ASIDE = 0.22  # between ours and the paper's, in rows of the figure


def table(records: Records, timings: pd.DataFrame) -> pd.DataFrame:
    """One row a series that was trained or timed; savings are fractions of the time of a step with LN.

    Columns: ``COLUMNS``. ``kind`` is "reference", "paired" (with the interval ``low high``), "unpaired" (from separate
    runs, without) or "unknown" (``note`` says why). ``timings``: :func:`rmsexp.compare.timing.load` of this setting
    alone; of several records the newest counts.
    """
    speeds = {series: stats.speed(records, series) for series in style.in_order(records.runs["series"])}
    steps = timing.newest(timings) if len(timings) else timings
    timed = {str(row["series"]): row for _, row in steps.iterrows() if stats.is_plain_ln(str(row["reference"]))}
    rows = []
    for series in style.in_order([*speeds, *timed]):
        if series in timed:
            rows.append({"series": series, **_paired(timed[series], series)})
        else:
            rows.append({"series": series, **_unpaired(speeds[series], list(speeds.values()))})
    return pd.DataFrame(rows, columns=COLUMNS)


def _paired(row: pd.Series, series: str) -> dict[str, Any]:
    where = f"{row['rounds']} rounds" + ("" if row["time_state"] == "clear" else f", {row['time_state']}")
    return {
        "impl": row["impl"],
        "seconds_per_1k_steps": row["median_seconds_per_1k_steps"],
        "q25": row["q25"],
        "q75": row["q75"],
        **dict(zip(("saving", "low", "high"), timing.saving(row.to_dict()), strict=True)),
        "kind": "reference" if series == row["reference"] else "paired",
        "note": where,
    }


def _unpaired(own: stats.Speed, speeds: list[stats.Speed]) -> dict[str, Any]:
    saved, note = stats.saving(own, speeds)
    kind = note if note in ("reference", "unpaired") else "unknown"
    times = {"seconds_per_1k_steps": own.median, "q25": own.low, "q75": own.high}
    return {"impl": own.impl, **times, "saving": saved, "low": math.nan, "high": math.nan, "kind": kind, "note": note}


def readable(table: pd.DataFrame, task: str) -> pd.DataFrame:
    """The same for people, with the paper's times and savings by framework."""
    rows = []
    for row in table.to_dict("records"):
        median, low, high = (row[key] for key in ("seconds_per_1k_steps", "q25", "q75"))
        known = not math.isnan(median)
        digits = [tables.four_digits(value) for value in (median, low, high)] if known else []
        rows.append(
            {
                "norm": style.label(row["series"]),
                "seconds per 1k steps, median (quartiles)": "{} ({} to {})".format(*digits)
                if known
                else tables.NO_VALUE,
                "saving vs LayerNorm": _saving(row),
                "seconds per 1k steps, paper": _of_paper(task, row["series"], "seconds_per_1k_steps", 1, ".4g"),
                "saving, paper": _of_paper(task, row["series"], "saving_vs_ln", 100, ".1f", " %"),
            }
        )
    return pd.DataFrame(rows)


def _saving(row: dict[Any, Any]) -> str:
    if row["kind"] == "unknown":
        return f"{tables.NO_VALUE} ({row['note']})"
    if row["kind"] == "reference":
        return "reference"
    spread = f" ({row['low'] * 100:.1f} to {row['high'] * 100:.1f} %)" if row["kind"] == "paired" else ""
    note = f", {row['note']}" if row["kind"] == "paired" else ""
    return f"{row['saving'] * 100:.1f} %{spread}, {row['kind']}{note}"


def _of_paper(task: str, series: str, metric: str, factor: float, form: str, unit: str = "") -> str:
    theirs = published.of(task, metric)
    theirs = theirs[theirs["norm"] == series.lower()]
    values = [
        f"{value * factor:{form}}{unit} ({framework}, {table})"
        for value, framework, table in zip(theirs["value"], theirs["framework"], theirs["table"], strict=True)
    ]
    return "; ".join(values) or tables.NO_VALUE


def draw(table: pd.DataFrame, task: str, title: str, notes: list[str]) -> Figure:
    """The saving of each series against LN: ours, filled with an interval where paired, else hollow; the paper's."""
    shown = table[table["saving"].notna() | table["series"].isin(published.savings(task)["norm"])]
    shown = shown[shown["kind"] != "reference"].iloc[::-1].reset_index(drop=True)
    names = [style.label(one) for one in shown["series"]]
    figure, axes = figures.bars(names, title, [*notes, _legend_note(shown)])
    for place, row in enumerate(shown.to_dict("records")):
        if not math.isnan(row["saving"]):
            _ours(axes, place, row)
    _theirs(axes, task, list(shown["series"]))
    axes.axvline(0, color="#777777", linewidth=0.8)
    axes.set_xlabel("time saved against LayerNorm (%)")
    return figure


def _legend_note(shown: pd.DataFrame) -> str:
    kinds = {
        "paired": "filled: ours, paired, with its 95 % interval",
        "unpaired": "hollow: ours, from separate runs (unpaired)",
    }
    return "; ".join([text for kind, text in kinds.items() if kind in set(shown["kind"])] + ["grey: paper"])


def _ours(axes: Axes, place: int, row: dict[Any, Any]) -> None:
    colour, saved, paired = style.colour(style.norm_of(row["series"])), row["saving"] * 100, row["kind"] == "paired"
    if paired:
        ends = [row["low"] * 100, row["high"] * 100]
        axes.plot(ends, [place, place], "|-", color=colour, linewidth=figures.THICK, markersize=12)
    axes.plot(saved, place, "o", color=colour, fillstyle="full" if paired else "none", markersize=6)


def _theirs(axes: Axes, task: str, series: list[str]) -> None:
    places = {one.lower(): place for place, one in enumerate(series)}
    savings = published.savings(task)
    savings = savings[savings["norm"].isin(list(places))]
    frameworks = list(dict.fromkeys(savings["framework"]))
    for marker, framework in zip(MARKERS, frameworks, strict=False):
        own = savings[savings["framework"] == framework]
        at = [places[norm] - ASIDE for norm in own["norm"]]
        axes.plot(own["saving"] * 100, at, marker, color="#777777", markersize=6, label=f"paper, {framework}")
    if frameworks:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
