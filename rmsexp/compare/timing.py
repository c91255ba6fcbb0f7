"""Records of ``python -m rmsexp.timing``: step times of norms that took turns in one process, as paired ratios.

A record is ``<results>/<task>/<setting>/timing/<kind><number>/timing.json``. Everything that is said of it is computed
here from the seconds of its blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rmsexp import record
from rmsexp.compare import published
from rmsexp.compare.load import DAMAGE
from rmsexp.compare.style import colour, label, norm_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILE = "timing.json"
CONFIDENCE = 0.95
RESAMPLES = 2000
KINDS = {"steps": "whole training steps", "layers": "the norm layers alone, as steps call them"}
PARTS = ("forward", "backward", "update")
COLUMNS = (
    *("folder", "task", "setting", "scale", "kind", "impl", "series", "norm", "reference"),
    *("median_seconds_per_1k_steps", "q25", "q75", "ratio", "low", "high"),
    *(*PARTS, "peak_bytes", "data_seconds_per_1k_steps", "rounds", "steps_per_block"),
    *("device", "threads", "torch", "time_state", "stopped", "started", "builtin"),
)


class Interval(NamedTuple):
    """A paired ratio of times with its 95 % interval; below 1, the norm is quicker than the reference."""

    ratio: float
    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low


def paired_ratio(own: ArrayLike, reference: ArrayLike) -> Interval:
    """The ratio own / reference over rounds, with a bootstrap interval (percentiles; rounds drawn anew).

    It is the interquartile mean of the rounds' ratios, in logarithms, so rounds that something disturbed fall out as of
    a median, and it varies less. Percentiles of few rounds are too narrow; Student's t widens them, for the half of the
    rounds that counts. In 6,000 simulated measurements that stopped at an interval narrow enough, disturbed and not, 94
    to 97 % of the intervals held the truth.

    ``own`` and ``reference``: seconds of a step in the same rounds, ``(rounds,)`` each.
    """
    logarithms = np.log(np.asarray(own, float) / np.asarray(reference, float))
    if np.ptp(logarithms) < 1e-12:  # the reference beside itself
        return Interval(*[float(np.exp(logarithms[0]))] * 3)
    from scipy.special import ndtri, stdtrit
    from scipy.stats import bootstrap, trim_mean

    def middle(values: np.ndarray, axis: int = -1) -> np.ndarray:
        return trim_mean(values, 0.25, axis=axis)

    drawn = bootstrap(
        (logarithms,), middle, confidence_level=CONFIDENCE, n_resamples=RESAMPLES, method="percentile", rng=0
    ).confidence_interval
    tail = (1 + CONFIDENCE) / 2
    wider = stdtrit(max(1, len(logarithms) // 2 - 1), tail) / ndtri(tail)
    found = float(middle(logarithms))
    return Interval(*(float(np.exp(value)) for value in (found, *(found + wider * (end - found) for end in drawn))))


def new_folder(parent: Path, kind: str) -> Path:
    """The next free ``<kind><number>`` in a folder; records are never replaced."""
    folders = (parent / f"{kind}{number}" for number in itertools.count())
    return next(folder for folder in folders if not folder.exists())


def load(root: str | Path, problems: list[str] | None = None) -> pd.DataFrame:
    """Every timing record below ``root``, one row a series (``COLUMNS``); of one that cannot be read a problem is told.

    Times are seconds per 1k steps: of a step, and of its parts in blocks of their own. ``ratio low high``: see
    :func:`paired_ratio`; of the reference they are 1.
    """
    found: list[dict[str, Any]] = []
    for path in sorted(Path(root).rglob(f"timing/*/{FILE}")):
        try:
            found += rows(record.read_json(path), str(path.parent))
        except DAMAGE as error:
            if problems is not None:
                problems.append(f"{path}: {error!r} in a timing record, which is left out")
    return pd.DataFrame(found, columns=list(COLUMNS))


def newest(timings: pd.DataFrame, kind: str = "steps", *, each: Sequence[str] = ("task", "setting")) -> pd.DataFrame:
    """Of each task and setting, or each combination of other columns, the rows of the record that was made last."""
    of_kind = timings[timings["kind"] == kind]
    last = of_kind.groupby(list(each))["started"].transform("max")
    return of_kind[of_kind["started"] == last].reset_index(drop=True)


def rows(stored: dict[str, Any], folder: str) -> list[dict[str, Any]]:
    """The rows of one record."""
    session = stored["session"]
    shared = {key: stored[key] for key in ("task", "setting", "scale", "kind", "reference", "stopped")} | {
        "folder": folder,
        "data_seconds_per_1k_steps": 1000 * stored["data_seconds"],
        "steps_per_block": stored["steps_per_block"],
        "device": session["device"],
        "threads": session["threads"],
        "torch": session["versions"]["torch"],
        "time_state": session["contention"]["state"],
        "started": session["started"],
        "builtin": stored["dataset"]["builtin"],
    }
    seconds = {one["series"]: np.array(one["seconds"], float) for one in stored["series"]}
    return [shared | _row(one, seconds, stored["reference"]) for one in stored["series"]]


def _row(one: dict[str, Any], seconds: dict[str, np.ndarray], reference: str) -> dict[str, Any]:
    own = seconds[one["series"]]
    low, median, high = 1000 * np.quantile(own, [0.25, 0.5, 0.75])
    times = {"median_seconds_per_1k_steps": median, "q25": low, "q75": high, "rounds": len(own)}
    parts = {name: 1000 * value for name, value in one["parts"].items()}
    named = {key: one[key] for key in ("series", "impl", "peak_bytes")} | {"norm": norm_of(one["series"])}
    return named | times | parts | paired_ratio(own, seconds[reference])._asdict()


def saving(row: Mapping[Hashable, Any]) -> tuple[float, float, float]:
    """The share of the reference's time that a row's norm saves, and its interval, as fractions."""
    return 1 - row["ratio"], 1 - row["high"], 1 - row["low"]


def labels(timings: pd.DataFrame) -> list[str]:
    """The name of each row's norm; where there are several implementations, each row says which it has."""
    mixed = timings["impl"].nunique() > 1
    plain = [
        label("+".join(part for part in one.split("+") if not part.startswith("impl="))) for one in timings["series"]
    ]
    return [f"{name} ({impl})" if mixed else name for name, impl in zip(plain, timings["impl"], strict=True)]


def readable(timings: pd.DataFrame) -> pd.DataFrame:
    """One record's rows as a person reads them, and the paper's savings beside."""
    task, reference = timings["task"].iloc[0], timings["reference"].iloc[0]
    theirs = published.savings(task if _beside_paper(timings) else "")
    found = []
    for name, alike, row in zip(labels(timings), like_reference(timings), timings.to_dict("records"), strict=True):
        of_paper = theirs.loc[(theirs["norm"] == row["norm"]) & alike, "saving"]
        found.append(
            {
                "norm": name,
                "ms per step, median (quartiles)": _spread(row),
                f"saving vs {label(reference)} (95 % interval)": _saving(row),
                "paper": " / ".join(f"{100 * saving:.1f} %" for saving in of_paper),
                "forward / backward / update, ms": _parts(row),
                "peak memory, MB": "" if pd.isna(row["peak_bytes"]) else f"{row['peak_bytes'] / 1e6:.0f}",
            }
        )
    return pd.DataFrame(found)


def _spread(row: dict[Hashable, Any]) -> str:
    return f"{row['median_seconds_per_1k_steps']:.4g} ({row['q25']:.4g} to {row['q75']:.4g})"


def _saving(row: dict[Hashable, Any]) -> str:
    if row["series"] == row["reference"]:
        return "reference"
    saved, low, high = (100 * share for share in saving(row))
    return f"{saved:.1f} % ({low:.1f} to {high:.1f})"


def _parts(row: dict[Hashable, Any]) -> str:
    return " / ".join(f"{row[part]:.4g}" for part in PARTS if not pd.isna(row[part]))


def notes(timings: pd.DataFrame) -> list[str]:
    """What must be said beside a record's table and figure."""
    row = timings.iloc[0]
    data = "built-in data; the paper's setting: scale=paper" if row["builtin"] else "real data"
    lines = [
        f"{KINDS[row['kind']]}, in blocks of {row['steps_per_block']}, the norms in random order in each of "
        f"{row['rounds']} rounds; stopped: {row['stopped']}",
        f"impl {', '.join(sorted(set(timings['impl'])))}; {row['device']}; threads {row['threads']:.0f}; "
        f"torch {row['torch']}; {data}; {row['started'][:10]}",
        f"{row['data_seconds_per_1k_steps']:.3g} ms a step for its batch, the same for all, are not in it",
        "" if row["time_state"] == "clear" else f"the machine was {row['time_state']} meanwhile; ratios are paired",
    ]
    return [line for line in lines if line]


def draw(timings: pd.DataFrame) -> Figure:
    """One record: the time that each norm saves against the reference, with intervals, and the paper's savings."""
    from rmsexp.compare import figures

    first = timings.iloc[0]
    figure, (times, savings) = figures.row(
        2, f"{first['task']}, {first['setting']}: time of {KINDS[first['kind']]}", notes(timings)
    )
    places = [-float(place) for place in range(len(timings))]
    for place, row in zip(places, timings.to_dict("records"), strict=True):
        median, shade = row["median_seconds_per_1k_steps"], colour(row["norm"])
        mark(times, place, median, row["q25"], row["q75"], shade)
        if row["series"] != first["reference"]:
            saved, low, high = (100 * share for share in saving(row))
            mark(savings, place, saved, low, high, shade)
    frameworks = _mark_paper(savings, timings) if _beside_paper(timings) else 0
    for axes in (times, savings):
        axes.set_yticks(places, [""] * len(places))
        foot = 0.35 * frameworks * max(1.0, len(places) / 4)  # where the legend is
        axes.set_ylim(places[-1] - 0.6 - foot, 0.6)
    for place, name in zip(places, labels(timings), strict=True):
        times.text(0.015, place + 0.12, name, transform=times.get_yaxis_transform(), size=9)
    savings.axvline(0, color="#777777", linewidth=0.8)
    times.set_xlim(left=0)
    times.set_xlabel("ms per step, median and quartiles")
    savings.set_xlabel(f"time saved vs {label(first['reference'])} (%), 95 % interval")
    return figure


def like_reference(timings: pd.DataFrame) -> pd.Series:
    """Whether each row has the implementation of its record's reference: only then is what it saves the norm's saving.

    The paper compares norms of one implementation.
    """
    of_reference = timings[timings["series"] == timings["reference"]].set_index("folder")["impl"]
    return timings["folder"].map(of_reference) == timings["impl"]


def _beside_paper(timings: pd.DataFrame) -> bool:
    """Whether the paper's savings are of the same kind: of whole steps, against LayerNorm."""
    first = timings.iloc[0]
    return bool(first["kind"] == "steps" and norm_of(first["reference"]) == "ln")


def mark(axes: Axes, place: float, middle: float, low: float, high: float, shade: str, marker: str = "o") -> None:
    """A point with its interval on the line ``place`` of a figure."""
    axes.errorbar([middle], [place], xerr=[[middle - low], [high - middle]], color=shade, fmt=marker, capsize=4)


def _mark_paper(axes: Axes, timings: pd.DataFrame) -> int:
    """The paper's savings as hollow markers below ours, one form a framework; returns how many there are."""
    theirs = published.savings(timings["task"].iloc[0])
    frameworks = list(dict.fromkeys(theirs["framework"]))
    for marker, framework in zip("sD^v", frameworks, strict=False):
        of = theirs[theirs["framework"] == framework].set_index("norm")["saving"]
        rows = [
            (-place - 0.25, 100 * of[norm], colour(norm))
            for place, (norm, alike) in enumerate(zip(timings["norm"], like_reference(timings), strict=True))
            if alike and norm in of
        ]
        if rows:
            y, x, shades = zip(*rows, strict=True)
            axes.scatter(x, y, marker=marker, facecolors="none", edgecolors=shades, label=f"paper, {framework}")
    if frameworks:
        axes.legend(loc="lower right", fontsize=8, frameon=False)
    return len(frameworks)
