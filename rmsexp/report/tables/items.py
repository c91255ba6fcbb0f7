"""Tables in the paper's own layout: our values in the rows and columns of the paper, and the paper's beside them."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rmsexp.campaign.item_file import TIME, Column, Found, Group, Item, Part
from rmsexp.records.frames import caveats, comparable, names, statistics, timing_records
from rmsexp.report import paper
from rmsexp.report.tables import formats
from rmsexp.report.tables.markup import Table

OURS, PAPER = "here", "paper"  # the two halves of a table
COLUMNS = ["label", "row", "series", "column", "here", "here_sd", "number", "saving", "low", "high"]
COLUMNS += ["paper", "paper_sd", "paper_saving"]
PRINTED_AS_DASH = "printed as a dash"  # how the note of a paper's number begins that the paper does not print
WITH_SAVING = ("rms", "prms")  # norms whose times have the saving against LayerNorm in brackets, as in the paper
LISTED = 3  # a note names at most this many runs, and then says how many more there are
TIME_NOTE = (
    "time: LayerNorm's is the mean over processes of its median step, and that of another norm is LayerNorm's times "
    "their ratio, which was measured interleaved; ± is the standard deviation over processes, of LayerNorm's "
    "time, and of another norm's ratio times LayerNorm's mean time; in brackets: the saving"
)


class Value(NamedTuple):
    """A value of ours, or of the paper.

    Attributes:
        mean: the mean over seeds, or over the processes of a timing; NaN if there is none.
        sd: the standard deviation over them; NaN below two.
        number: the number of seeds or processes; 0 for values of the paper.
        saving, low, high: the fraction of LayerNorm's time that is saved, and its interval; NaN for other quantities.
        remark: what stands in the cell in place of NaN, and behind a mean that leaves seeds out.
    """

    mean: float = math.nan
    sd: float = math.nan
    number: int = 0
    saving: float = math.nan
    low: float = math.nan
    high: float = math.nan
    remark: str = formats.NO_VALUE


def table(item: Item, parts: Sequence[Part]) -> Table:
    """Return an item's table: our half and the paper's, with the rows and columns of the paper.

    Its numbers have a row for each norm and column, with our value and the paper's; its text shows fractions in
    percent. A time is that of :func:`value`; norms in ``WITH_SAVING`` have the saving against LayerNorm in brackets.
    """
    numbers, text = list[dict[str, Any]](), list[dict[str, str]]()
    labels = any(part.group.label for part in parts)
    for part in parts:
        for place, (row, norm) in enumerate(part.group.norms.items()):
            series = norm if part.found is None else part.found.series[row]
            halves: dict[str, dict[str, str]] = {OURS: {}, PAPER: {}}
            for column in item.columns:
                found = Value() if part.found is None else value(part.found, series, column)
                published = _published(item, part.group, norm, column)
                for half, shown in ((OURS, found), (PAPER, published)):
                    halves[half][f"{column.name}, {half}"] = _text(shown, column, norm)
                entry: dict[str, Any] = {"label": part.group.label, "row": row, "series": series}
                entry |= {"column": column.name, "here": found.mean, "here_sd": found.sd} | found._asdict()
                entry |= {"paper": published.mean, "paper_sd": published.sd, "paper_saving": published.saving}
                numbers.append(entry)
            first = {"": part.group.label if place == 0 else ""} if labels else {}
            text.append(first | {"Model": row} | halves[OURS] | halves[PAPER])
    return Table(item.name, item.title, pd.DataFrame(numbers)[COLUMNS], pd.DataFrame(text))


def value(found: Found, series: str, column: Column) -> Value:
    """Return our value in a cell; NaN with a remark if there is none. A metric is the mean of the runs' results.

    A time is the mean per ``column.steps`` steps over processes. That of the baseline, LayerNorm, is its median in each
    process; that of another norm is the baseline's mean times the ratio of the two in each process. So norms that were
    timed in different processes are comparable.
    """
    if column.quantity == TIME:
        rows = [] if found.comparison is None else found.comparison.rows.to_dict("records")
        row = next((row for row in rows if row["series"] == series), None)
        if row is None:
            return Value()
        baseline = next(other for other in rows if other["series"] == row["baseline"])
        seconds = np.array([np.median(rounds) for rounds in baseline["seconds"] if rounds is not None])
        of_series = seconds if row is baseline else seconds.mean() * np.array(row["estimates"])
        mean, sd, _ = statistics.estimate(of_series * column.steps)
        return Value(mean, sd, len(of_series), *(() if row is baseline else timing_records.saving(row)))
    records = found.records
    runs = records.runs[records.runs["series"] == series]
    if runs.empty:
        return Value()
    of_all = statistics.headline_metric(records, statistics.common_step(records), column.split, column.metric)
    values = of_all.reindex(runs["folder"])
    mean, sd, _ = statistics.estimate(values.to_numpy(float))
    number = int(values.notna().sum())
    if number:
        return Value(mean, sd, number, remark="".join(formats.of_seeds(number, len(runs))))
    return Value(remark="diverged" if (runs["status"] == "diverged").any() else formats.NO_VALUE)


def _published(item: Item, group: Group, norm: str, column: Column) -> Value:
    """Return the paper's value in a cell; NaN if it has none."""
    found = _number(item, group, norm, column.metric, column.data)
    if found is None or str(found["note"]).startswith(PRINTED_AS_DASH):
        return Value()
    factor = column.steps / 1000 if column.quantity == TIME else 1.0
    saving = _number(item, group, norm, "saving_vs_ln", "") if column.quantity == TIME else None
    saved = math.nan if saving is None else float(saving["value"])
    return Value(float(found["value"]) * factor, float(found["spread"]) * factor, saving=saved)


def _number(item: Item, group: Group, norm: str, metric: str, data: str) -> dict[Any, Any] | None:
    """Return the row of a number of the paper, or None. ``data``: the paper's name of the data; empty: any."""
    rows = paper.numbers()
    rows = rows[(rows["table"] == item.title) & (rows["framework"] == group.framework)]
    rows = rows[(rows["norm"] == norm) & (rows["metric"] == metric) & ((rows["data"] == data) | (not data))]
    assert len(rows) <= 1, f"{item.name}: several numbers of the paper for {norm} {metric}"
    return None if rows.empty else rows.iloc[0].to_dict()


def _text(found: Value, column: Column, norm: str) -> str:
    """Return a cell, such as "22.6", "22.6 ± 0.3 (2 of 3 seeds)" or "501 ± 11.8 (24.7 %)"."""
    if math.isnan(found.mean):
        return found.remark
    if column.quantity == TIME:
        spread = "" if math.isnan(found.sd) else f" ± {found.sd:.3g}"
        is_shown = names.norm_of(norm) in WITH_SAVING and not math.isnan(found.saving)
        saved = f" ({formats.saving(found.saving)})" if is_shown else ""
        return f"{formats.without_exponent(found.mean)}{spread}{saved}"
    factor = names.scale_and_unit(column.metric)[0]
    spread = "" if math.isnan(found.sd) else f" ± {found.sd * factor:.{column.decimals}f}"
    left_out = f" ({found.remark})" if found.remark not in ("", formats.NO_VALUE) else ""
    return f"{found.mean * factor:.{column.decimals}f}{spread}{left_out}"


def sources(scale: str, parts: Sequence[Part]) -> list[str]:
    """Return a sentence per setting on where our values come from: scale, data, seeds of the runs, machine."""
    found = [part.found for part in parts if part.found is not None]
    several = len({each.setting for each in found}) > 1
    lines = []
    for each in found:
        runs = each.records.runs
        rows = runs if len(runs) or each.comparison is None else each.comparison.rows
        if len(rows):
            kind = "built-in synthetic data" if rows["builtin"].eq(True).any() else "real data"
            data = " ".join([kind, *sorted(runs["dataset"].dropna().unique())])
            seeds = sorted(runs["seed"].unique())
            numbers = f", seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if seeds else ""
            machines = ", ".join(sorted(rows["device"].dropna().unique()))
            place = f" ({each.setting})" if several else ""
            lines.append(f"Here{place}: scale={scale}, {data}{numbers}, {machines}.")
    return lines


def notes(item: Item, parts: Sequence[Part]) -> list[str]:
    """Return the lines below a table or figure: evaluation, machine, code, times, what is missing, remarks."""
    lines = []
    several = sum(part.found is not None for part in parts) > 1
    for part in parts:
        if part.found is None:
            name = part.group.label or ", ".join(part.group.norms)
            lines.append(f"{name}: no values of ours: {part.group.absent}")
        else:
            place = f"{part.found.setting}: " if several else ""
            lines += [f"{place}{line}" for line in _of_part(item, part.found)]
    numbers, frameworks = paper.numbers(), {part.group.framework for part in parts}
    shown = numbers[(numbers["table"] == item.title) & numbers["framework"].isin(frameworks)]
    return [*lines, *paper.remarks(shown)]


def _of_part(item: Item, found: Found) -> Iterator[str]:
    records = found.records
    if found.missing:
        more = f" and {len(found.missing) - LISTED} more" if len(found.missing) > LISTED else ""
        yield f"not done yet: {', '.join(found.missing[:LISTED])}{more}"
    if len(records.runs):
        if item.columns:
            target = statistics.target(records)
            spread = "; ± is the standard deviation over seeds" if records.runs["seed"].nunique() > 1 else ""
            best = f"evaluation with the best {names.metric_label(target.metric)} on {target.selection}"
            last = statistics.final_label(target, "last evaluation")
            yield f"values of the {last if statistics.is_final(target) else best}{spread}"
        yield from caveats.caveats(records)
    if found.comparison is not None:
        yield TIME_NOTE
        yield from comparable.notes(found.comparison)
    elif item.timed:
        yield "the time of training steps has not been measured yet"
