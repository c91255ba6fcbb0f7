"""Names, order and units of norms, series and metrics, shared by all tables and figures.

A series is a norm with the options that were changed, such as "prms+p=0.5". Its runs in one setting differ in the seed.
"""

from collections.abc import Iterable

from rmsexp import config
from rmsexp.config import score
from rmsexp.config.words import parts

NAMES = {norm: str(about["label"]) for norm, about in config.about_norms().items()}
RECALLS = tuple(f"{kind}_{cutoff}" for kind in ("image", "caption") for cutoff in ("recall", "r1", "r5", "r10"))
FRACTIONS = ("error", "accuracy", *RECALLS)  # metrics that are stored as fractions and shown in percent
VALID = "valid"  # the split of evaluations on all validation examples
SAMPLE = score.SAMPLE  # the split of evaluations on the first validation examples
SEARCHED = ("bleu", "chrf")  # metrics of texts that are searched for, greedily on the validation sample
FINE = ("bits_per_byte", "loss")  # metrics whose differences are shown with four decimals instead of two
METRICS = {"bleu": "BLEU", "chrf": "chrF", "image_recall": "image recall@1,5,10", "bits_per_byte": "bits per byte"}
METRICS |= {f"{kind}_r{k}": f"{kind} recall@{k}" for kind in ("image", "caption") for k in (1, 5, 10)}
TASKS = {"cifar10": "CIFAR-10", "rnnsearch": "RNNSearch", "order_embedding": "Order-embeddings"}
SPLITS = {VALID: "validation", SAMPLE: "validation", "train": "training"}
OPTIONS = {"optim.lr": "learning rate", "schedule.steps": "steps", "evaluation": "evaluation on"}
OPTIONS |= {"model.init_center": "weights centred on", "data.name": "data", "data.length": "sequence length"}
WORDS = {"gain=false": "without gain", "model.qk_norm=true": "with QK-norm", "optim.name=muon": "with Muon"}
WORDS |= {f"model.placement={place}": f"in {place} placement" for place in ("sandwich", "reordered")}
WORDS |= {"model.embedding_scale=true": "with scaled embeddings"}

FLOAT32 = "float32"  # the usual precision, and that of records which do not name one


def norm_of(series: str) -> str:
    """Return the norm of a series, such as "prms" for "prms+p=0.5"."""
    return series.partition("+")[0]


def label(series: str) -> str:
    """Return the name of a series for people, such as "pRMSNorm p=0.5" for "prms+p=0.5"."""
    norm, *overrides = parts(series)
    return " ".join([NAMES.get(norm, norm), *map(option_label, overrides)])


def labels(series: Iterable[str]) -> dict[str, str]:
    """Return the :func:`label` of each series. The implementation is named only if the series have several."""
    impls = {name: [part for part in parts(name) if part.startswith("impl=")] for name in series}
    plain = without_impl if len(set(map(tuple, impls.values()))) == 1 else str
    return {name: label(plain(name)) for name in impls}


def task_label(task: str) -> str:
    """Return the name of a task for people, such as "Attentive reader" for "attentive_reader"."""
    words = task.replace("_", " ")
    return TASKS.get(task, words[:1].upper() + words[1:])


def setting_label(setting: str) -> str:
    """Return a setting for people, such as "medium, learning rate 0.002" for "medium+optim.lr=0.002"."""
    scale, *overrides = parts(setting)
    return ", ".join([scale, *map(option_label, overrides)])


def option_label(option: str) -> str:
    """Return an option, perhaps with its value, for people, such as "learning rate 0.002" for "optim.lr=0.002"."""
    key, _, value = option.partition("=")
    plain = option.removeprefix("model.").removeprefix("schedule.")
    return f"{OPTIONS[key]} {value}".strip() if key in OPTIONS else WORDS.get(option.lower(), plain)


def without_impl(series: str) -> str:
    """Return a series without the option ``impl``, which changes the speed only, such as "ln" for "ln+impl=fused"."""
    return "+".join(part for part in parts(series) if not part.startswith("impl="))


def is_plain_ln(series: str) -> bool:
    """Return whether a series is LN with no changed option, except perhaps ``impl``: the baseline of differences."""
    return without_impl(series) == "ln"


def in_order(series: Iterable[str]) -> list[str]:
    """Return the distinct series, sorted by norm in the order of ``NAMES`` (others last), without options first."""
    rank = {norm: index for index, norm in enumerate(NAMES)}
    return sorted(set(series), key=lambda name: (rank.get(norm_of(name), len(rank)), without_impl(name), name))


def metric_label(metric: str) -> str:
    """Return the name of a metric for people, such as "BLEU" for "bleu"."""
    return METRICS.get(metric, metric)


def on_split(split: str, metric: str, label: str, unit: str = "") -> str:
    """Return a metric on a split for people: with its unit, such as "validation error (%, 256 examples)"."""
    of_sample = [f"{score.SAMPLE_EXAMPLES} examples", *["greedy"] * (metric in SEARCHED)] if split == SAMPLE else []
    remarks = ", ".join([*filter(None, [unit]), *of_sample])
    return f"{SPLITS.get(split, split)} {label}" + f" ({remarks})" * bool(remarks)


def scale_and_unit(metric: str) -> tuple[float, str]:
    """Return (factor, unit): a metric's stored value times the factor is the displayed value, in this unit.

    The unit is "%" or empty. It is empty for the loss, too, whose unit depends on the task.
    """
    return (100.0, "%") if metric in FRACTIONS else (1.0, "")


def unit_of_difference(metric: str) -> str:
    """Return "points" (percentage points) for fractions, "nats" for the loss, or a metric's name, such as "BLEU"."""
    return "points" if metric in FRACTIONS else "nats" if metric == "loss" else metric_label(metric)
