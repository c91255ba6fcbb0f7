"""How well each norm trains at ``scale=medium``: the validation metric at its best rate of those that were tried."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from readme_blocks.evidence import Evidence
from readme_blocks.text import not_recorded, paragraphs, plural, table
from rmsexp.config import score
from rmsexp.records import record
from rmsexp.records.frames import names, quantities, statistics
from rmsexp.records.frames.load import Records
from rmsexp.report.tables import formats, learning_rates
from rmsexp.system.readers import read_yaml

COMMAND = "python -m rmsexp -m task=cifar10 scale=medium norm=wn evaluation=validation seed=1000 data.root=~/data"
WN, READER = "wn", "attentive_reader"


def trained(evidence: Evidence) -> str:
    """A row per norm and a column per task, with the best rate, and what WeightNorm does on CIFAR-10 at each rate."""
    columns: dict[str, Mapping[str, str]] = {}
    for task, settings in _tuning(evidence).items():
        first = next(iter(settings.values()))
        target = statistics.target(first)
        title = quantities.title(quantities.usual(target.selection, target.metric))
        rates = learning_rates.table(settings)
        rates["norm"] = rates["series"].map(names.without_impl)
        columns[f"`{task}`: {title}"] = {
            str(norm): _best(of_norm, target.metric) for norm, of_norm in rates.groupby("norm", sort=False)
        }
    if not columns:
        return not_recorded(COMMAND)
    rows = [
        {"norm": names.label(norm)} | {task: found.get(norm, formats.NO_VALUE) for task, found in columns.items()}
        for norm in names.in_order(norm for found in columns.values() for norm in found)
    ]
    return paragraphs(table(rows), _tries(evidence), _weight_norm(evidence))


def _best(rates: pd.DataFrame, metric: str) -> str:
    """Return, for the rates of one norm, the mean of its metric at the best one, as reports rank them."""
    best = rates.sort_values("rank").iloc[0]
    if math.isnan(best["rank"]):
        return formats.NO_VALUE
    factor, _ = names.scale_and_unit(metric)
    seeds = plural(int(best["runs"]), "seed")
    value = f"{factor * best['chosen_by']:.{3 if metric in names.FINE else 1}f}"
    return f"{value} at {best['rate']:g} ({seeds}; {plural(len(rates), 'rate')} tried)"


def _tuning(evidence: Evidence) -> dict[str, dict[Path, Records]]:
    """Return the settings of pilot and tuning runs, by task; those of a task differ in the learning rate alone."""
    found: dict[str, dict[Path, Records]] = {}
    for folder, records in evidence.runs("quality").settings().items():
        if re.fullmatch(rf"[a-z]+\+evaluation={score.PLANS[1]}", learning_rates.family(folder).name):
            found.setdefault(folder.parent.name, {})[folder] = records
    return found


def _tries(evidence: Evidence) -> str:
    """Return a table of the runs without norm and with WeightNorm on ``attentive_reader``, where these hardly train."""
    rows = [
        {
            "norm": names.label(names.without_impl(run["series"])),
            "setting": f"`{folder.name}`",
            "seed": str(run["seed"]),
        }
        | {"valid error, mean of the last three": scores.get(run["folder"], formats.NO_VALUE)}
        for folder, records in evidence.runs("quality").settings().items()
        if folder.parent.name == READER
        for scores in [_scores(records)]
        for run in records.runs.to_dict("records")
        if names.norm_of(run["series"]) in ("none", WN)
    ]
    rows.sort(key=lambda row: (row["norm"], len(row["setting"]), row["setting"]))
    return paragraphs(f"All runs of `{READER}` without norm and with WeightNorm:", table(rows)) if rows else ""


def _scores(records: Records) -> pd.Series:
    """Return the validation scores of a setting's runs as text, by their folder."""
    scores = statistics.final_metric(records, statistics.common_step(records), statistics.target(records).selection)
    return scores.map(lambda value: f"{100 * value:.1f} %")


def _weight_norm(evidence: Evidence) -> str:
    """Return a table of WeightNorm on CIFAR-10: its error before and after the step at which beta1 drops, by rate."""
    rows = [row for records in _tuning(evidence).get("cifar10", {}).values() for row in _around_the_drop(records)]
    if not rows:
        return ""
    rows.sort(key=lambda row: float(row["rate"]))
    return paragraphs(
        "WeightNorm on `cifar10`, whose schedule lowers Adam's beta1 from 0.9 to 0.5 after half of the steps (errors "
        "on the first 256 validation images):",
        table(rows),
    )


def _around_the_drop(records: Records) -> Iterator[dict[str, str]]:
    """Yield, for each run with WeightNorm, its error at half of the steps, the highest after it, and the last."""
    for run in records.runs[records.runs["series"].map(names.norm_of) == WN].to_dict("records"):
        of_run = records.metrics["folder"] == run["folder"]
        rows = records.metrics[of_run & (records.metrics["split"] == score.INTERIM)]
        errors = 100 * rows.set_index("step")["error"].sort_index()
        half = run["recipe_steps"] / 2
        before, after = errors[errors.index <= half], errors[errors.index > half]
        yield {
            "rate": f"{read_yaml(Path(run['folder']) / record.CONFIG)['optim']['lr']:g}",
            "seed": str(run["seed"]),
            "error at half of the steps": _percent(before.tail(1)),
            "highest error after that": _percent(after.nlargest(1)),
            "error at the end": _percent(after.tail(1)),
            "state": f"{run['status']} at step {run['step']}",
        }


def _percent(values: pd.Series) -> str:
    """Return the only value in percent, or that there is none."""
    return formats.NO_VALUE if values.empty else f"{values.iloc[0]:.1f} %"
