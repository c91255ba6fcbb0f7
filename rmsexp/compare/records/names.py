"""What every figure and table agrees on: the names, the order and the colours of the norms. Imports nothing heavy."""

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
RECALLS = tuple(f"{kind}_{what}" for kind in ("image", "caption") for what in ("recall", "r1", "r5", "r10"))
FRACTIONS = ("error", "accuracy", *RECALLS)  # metrics that are shown in percent
METRICS = {"bleu": "BLEU", "chrf": "chrF", "image_recall": "image recall@1,5,10"}


def metric(name: str) -> str:
    """ "bleu" is "BLEU"."""
    return METRICS.get(name, name)


def norm_of(series: str) -> str:
    return series.partition("+")[0]


def label(series: str) -> str:
    """ "prms+p=0.5" is "pRMSNorm p=0.5"."""
    norm, *overrides = series.split("+")
    return " ".join([NAMES.get(norm, norm), *overrides])


def in_order(series: Iterable[str]) -> list[str]:
    """Distinct series: the paper's norms first, in one order everywhere, then those from outside by name."""
    rank = {norm: index for index, norm in enumerate(NAMES)}
    return sorted(set(series), key=lambda one: (rank.get(norm_of(one), len(rank)), one))


def scale_and_unit(metric: str) -> tuple[float, str]:
    """What a stored value is multiplied by to be shown, and the unit it then has; a loss has that of its task."""
    return (100.0, "%") if metric in FRACTIONS else (1.0, "")


def is_plain_ln(series: str) -> bool:
    """Whether a series is LN with its file's options, whatever its impl: what others of that impl are set against."""
    norm, *overrides = series.split("+")
    return norm == "ln" and all(override.startswith("impl=") for override in overrides)
