"""Names, order and units that every table and figure shares: of norms, series and metrics. Imports nothing heavy."""

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
    """Return the norm of a series: that of "prms+p=0.5" is "prms"."""
    return series.partition("+")[0]


def label(series: str) -> str:
    """Return the name that people read: that of "prms+p=0.5" is "pRMSNorm p=0.5"."""
    norm, *overrides = series.split("+")
    return " ".join([NAMES.get(norm, norm), *overrides])


def is_plain_ln(series: str) -> bool:
    """Whether a series is LN with the options of its config file, in any implementation: the baseline of savings."""
    norm, *overrides = series.split("+")
    return norm == "ln" and all(override.startswith("impl=") for override in overrides)


def in_order(series: Iterable[str]) -> list[str]:
    """Return the distinct series: first those of the norms in ``NAMES``, in that order, then all others by name."""
    rank = {norm: index for index, norm in enumerate(NAMES)}
    return sorted(set(series), key=lambda name: (rank.get(norm_of(name), len(rank)), name))


def metric_label(metric: str) -> str:
    """Return the name of a metric that people read: that of "bleu" is "BLEU"."""
    return METRICS.get(metric, metric)


def scale_and_unit(metric: str) -> tuple[float, str]:
    """Return the factor from stored to shown values of a metric, and their unit; the unit of a loss is its task's."""
    return (100.0, "%") if metric in FRACTIONS else (1.0, "")
