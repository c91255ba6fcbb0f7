"""Names, order and units of norms, series and metrics, shared by all tables and figures.

A series is a norm with the options that were changed, such as "prms+p=0.5".
"""

from __future__ import annotations

from collections.abc import Iterable

NAMES = {
    "none": "no norm",
    "ln": "LayerNorm",
    "rms": "RMSNorm",
    "prms": "pRMSNorm",
    "bn": "BatchNorm",
    "wn": "WeightNorm",
    "l2": "L2-Norm",
    "nonparametric_ln": "non-parametric LN",
    "mean_only_bn": "mean-only BN",
}
RECALLS = tuple(f"{kind}_{cutoff}" for kind in ("image", "caption") for cutoff in ("recall", "r1", "r5", "r10"))
FRACTIONS = ("error", "accuracy", *RECALLS)  # metrics that are shown in percent
METRICS = {"bleu": "BLEU", "chrf": "chrF", "image_recall": "image recall@1,5,10"}


def norm_of(series: str) -> str:
    """Return the norm of a series, such as "prms" for "prms+p=0.5"."""
    return series.partition("+")[0]


def label(series: str) -> str:
    """Return the name of a series for people, such as "pRMSNorm p=0.5" for "prms+p=0.5"."""
    norm, *overrides = series.split("+")
    return " ".join([NAMES.get(norm, norm), *overrides])


def is_plain_ln(series: str) -> bool:
    """Return whether a series is LN with at most ``impl`` changed. Savings are relative to such a series."""
    norm, *overrides = series.split("+")
    return norm == "ln" and all(override.startswith("impl=") for override in overrides)


def in_order(series: Iterable[str]) -> list[str]:
    """Return the distinct series: first those of the norms in ``NAMES``, in that order, then all others by name."""
    rank = {norm: index for index, norm in enumerate(NAMES)}
    return sorted(set(series), key=lambda name: (rank.get(norm_of(name), len(rank)), name))


def metric_label(metric: str) -> str:
    """Return the name of a metric for people, such as "BLEU" for "bleu"."""
    return METRICS.get(metric, metric)


def scale_and_unit(metric: str) -> tuple[float, str]:
    """Return the factor from stored to displayed values of a metric, and their unit.

    The unit is empty for metrics without unit, and for the loss, whose unit depends on the task.
    """
    return (100.0, "%") if metric in FRACTIONS else (1.0, "")
