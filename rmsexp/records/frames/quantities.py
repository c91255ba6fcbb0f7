"""The quantities of a setting: what its figures, tables and page show against steps and time."""

from dataclasses import replace

import pandas as pd

from rmsexp.records.frames import names, statistics
from rmsexp.records.frames.load import Records
from rmsexp.rules import quantities
from rmsexp.rules.quantities import Quantity

TRAIN = "train"  # the split of the rows of training


def named(records: Records) -> list[Quantity]:
    """Return the quantities that the runs of a setting name, each once.

    If they name none, as older records: the training loss, the loss on the selection split, and the target metric on
    the selection split and on the split of the target. Raises: ValueError if no run names a target metric.
    """
    target, lists = statistics.target(records), records.runs["quantities"].dropna()
    if found := dict.fromkeys(quantity for own in lists for quantity in own):
        return list(found)
    unit = str(records.runs["target_loss_unit"].dropna().iloc[0])
    pairs = ((TRAIN, "loss"), (target.selection, "loss"), (target.selection, target.metric))
    return [usual(split, metric, unit) for split, metric in dict.fromkeys((*pairs, (target.split, target.metric)))]


def of_curves(records: Records) -> list[Quantity]:
    """Return the :func:`named` quantities, as curves show them.

    For runs with a score, held-out quantities are of the validation sample, as whole splits are rarely evaluated.
    """
    found = named(records)
    if statistics.target(records).scored:
        found = [one if one.split == TRAIN else replace(one, split=names.SAMPLE) for one in found]
    return list(dict.fromkeys(found))


def usual(split: str, metric: str, loss_unit: str = "nats") -> Quantity:
    """Return the quantity of a metric of this package's tasks. ``loss_unit``: used only if the metric is "loss"."""
    if metric == "loss":
        return quantities.loss(split, loss_unit)
    return Quantity(split, metric, names.metric_label(metric), names.scale_and_unit(metric)[1])


def unit_of_difference(records: Records, metric: str) -> str:
    """Return the unit of a metric's differences: :func:`names.unit_of_difference`, but the task's own for the loss."""
    of_loss = (one.unit for one in named(records) if one.metric == metric == "loss")
    return next(of_loss, names.unit_of_difference(metric))


def recorded(records: Records) -> list[Quantity]:
    """Return the quantities :func:`of_curves` of which a run has a value; all of them if no run has any."""
    found = of_curves(records)
    return [quantity for quantity in found if len(values(records, quantity))] or found


def values(records: Records, quantity: Quantity) -> pd.DataFrame:
    """Return the rows of the metrics that have a value of a quantity; its metric's column has the unscaled value."""
    # each once: a Recorder may log epoch
    columns = [*dict.fromkeys(("folder", "series", "step", "time", "epoch", quantity.metric))]
    rows = records.metrics.reindex(columns=columns)[records.metrics["split"] == quantity.split]
    return rows.dropna(subset=quantity.metric)


def missing(records: Records) -> str:
    """Return a line that lists the quantities without a value, of all norms or of some; "" if there are none."""
    series, parts = names.in_order(records.runs["series"]), []
    for quantity in of_curves(records):
        found = set(values(records, quantity)["series"])
        lacking = [names.label(name) for name in series if name not in found]
        if lacking:
            name = names.on_split(quantity.split, quantity.metric, quantity.label)
            parts.append(name + (f" of {', '.join(lacking)}" if len(lacking) < len(series) else ""))
    return f"without a recorded value, so not drawn: {'; '.join(parts)}" if parts else ""


def title(quantity: Quantity) -> str:
    """Return the title of an axis: split, metric and unit, such as "validation error (%)"."""
    return names.on_split(quantity.split, quantity.metric, quantity.label, quantity.unit)
