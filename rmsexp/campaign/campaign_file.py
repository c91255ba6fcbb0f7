"""Read ``campaign.json``, which lists a campaign's runs, claims and rules, and the registration beside it.

They may be damaged, or come from others.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from rmsexp.records import record
from rmsexp.rules import measures, seeds, selection
from rmsexp.rules.claims import Claim
from rmsexp.system.readers import read_json

FILE = "campaign.json"
REGISTRATION = "registered.json"  # beside the file, from the first tuning run on: the rules, and the commit of the code
FORMAT = 1
# Versions of the rules. Campaigns that began before 28 November 2026 have the first: rates an octave apart, and "look"
# and "most" for the smallest and the largest number of seeds.
OCTAVE_RULES, RULES = 1, 2
TUNING = {OCTAVE_RULES: selection.OCTAVES, RULES: selection.QUARTERS}
SEED_KEYS = {OCTAVE_RULES: ("look", "most"), RULES: ("min_seeds", "max_seeds")}
NO_GIT = "code "  # in the place of a commit where there is none, before a digest of files
REGISTERED = ("digest", "commit", "date")
Stage = Literal["pilot", "tune", "final"]
T = TypeVar("T")


class Job(NamedTuple):
    """A run of a campaign.

    Attributes:
        stage: "pilot", "tune" or "final".
        norm: the name of the norm in the campaign, such as "rms" or "prms+p=0.5"; on a ladder, with the values there
            (:func:`on_ladder`).
        rate: the value of the tuned key.
        seed: the run's seed.
        folder: its folder below the results, ``<task>/<setting>/<series>/seed<k>``.
    """

    stage: Stage
    norm: str
    rate: float
    seed: int
    folder: str

    @property
    def setting(self) -> str:
        """The folder of its setting below the results, ``<task>/<setting>``."""
        return str(PurePosixPath(self.folder).parents[1])


class Seeds(NamedTuple):
    """The tuning seeds, and numbers of final seeds: at least, at most, and as needed (None: not known yet)."""

    tune: tuple[int, ...]
    min_seeds: int
    max_seeds: int
    needed: int | None


class Registered(NamedTuple):
    """The rules of the campaign when its first tuning run began: its file without the part ``timing``.

    Attributes:
        digest: the digest of the rules.
        commit: the commit of the code; None if it was not known.
        date: the date.
        changed: how the rules have changed since, in words; None if they have not.
    """

    digest: str
    commit: str | None
    date: str
    changed: str | None


class Metric(NamedTuple):
    """A metric on a split, such as ("test", "error")."""

    split: str
    metric: str


@dataclass(frozen=True)
class CampaignFile:
    """The content of a ``campaign.json``.

    Attributes:
        path: the file.
        rules: the version of the rules by which it was planned and is decided.
        supersedes: the name of an earlier campaign whose verdicts this one replaces, once it is decided.
        name, question: the campaign's name, and what it shall answer.
        command: the words after ``python -m rmsexp.campaign``, without those that say where and how runs are done; the
            name alone if the file does not have them.
        runs: the overrides that all runs have.
        tuning_runs: those that tuning runs alone have.
        rate: the key that is tuned, such as "optim.lr".
        mode: "min" or "max", the better direction of both metrics.
        tuned_by: the metric by which rates are chosen.
        score: the metric that claims are about.
        norms: the names of the norms.
        ladder: keys with their values on the ladder on which the norms are compared; empty for none.
        tolerance: by how much a score may be worse within a stable range, if claims are about such ranges.
        grid: the rates that tuning starts with, ascending; :mod:`rmsexp.rules.selection` extends them.
        seeds: the tuning seeds and the numbers of final seeds.
        claims: the claims; their margins are in the displayed unit, such as percentage points.
        jobs: the runs planned so far.
        registered: None before the first run after the pilot.
    """

    path: Path
    rules: int
    supersedes: str | None
    name: str
    question: str
    command: tuple[str, ...]
    runs: dict[str, Any]
    tuning_runs: dict[str, Any]
    rate: str
    mode: Literal["min", "max"]
    tuned_by: Metric
    score: Metric
    norms: tuple[str, ...]
    ladder: dict[str, tuple[float, ...]]
    tolerance: float | None
    grid: tuple[float, ...]
    seeds: Seeds
    claims: tuple[Claim, ...]
    jobs: tuple[Job, ...]
    registered: Registered | None

    @property
    def task(self) -> str:
        """The task of all runs; "unknown" before there are any."""
        return next((job.folder.partition("/")[0] for job in self.jobs), str(self.runs.get("task", "unknown")))

    @property
    def is_tuned(self) -> bool:
        """Whether rates are chosen; otherwise all norms have the only rate of the grid, or every rate."""
        return is_tuned(self.rules, self.grid, self.tolerance)

    @property
    def arms(self) -> dict[str, tuple[str, ...]]:
        """For each norm, its arms: what is trained and tuned. Without a ladder this is the norm itself; with one it is
        the norm with each of the ladder's values, such as "rms+schedule.steps=500".
        """
        return {norm: on_ladder(norm, self.ladder) for norm in self.norms}

    @property
    def measure(self) -> str:
        """What the claims are about: "score", "slope" or "stable range" (:mod:`rmsexp.rules.measures`)."""
        if self.tolerance is not None:
            return measures.RANGE
        return measures.SLOPE if self.ladder else measures.SCORE

    @property
    def tuning_rule(self) -> selection.Rule:
        return TUNING[self.rules]


def is_tuned(rules: int, grid: Sequence[float], tolerance: float | None) -> bool:
    """Return whether rates are chosen from a grid.

    A single rate is given, except by the first rules; with a tolerance, every rate of the grid is run.
    """
    return tolerance is None and (rules == OCTAVE_RULES or len(grid) > 1)


def on_ladder(norm: str, ladder: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    """Return the names of a norm on a ladder, such as "rms+schedule.steps=500"; the norm itself without a ladder."""
    places = zip(*ladder.values(), strict=True) if ladder else [()]
    return tuple("+".join([norm, *map("{}={}".format, ladder, map(plain, values))]) for values in places)


def plain(value: float) -> str:
    """Return a number as it is typed: keys of integers refuse 16.0, and keys of numbers take 16, too."""
    return repr(int(value) if value.is_integer() else value)


def find(root: Path) -> Iterator[Path]:
    """Yield the ``campaign.json`` of each campaign below a folder, which may hold several results folders."""
    yield from record.find(root, f"campaigns/*/{FILE}")


def digest(rules: dict[str, Any]) -> str:
    """Return the digest of a campaign's rules, which are plain values."""
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the single values in nested dicts and lists of dicts, with their places, such as "claims[0].margin"."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, f"{place}.{key}" if place else key)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for number, item in enumerate(value):
            yield from leaves(item, f"{place}[{number}]")
    else:
        yield place, value


def registration(folder: Path) -> dict[str, Any] | None:
    """Return the content of the registration in a campaign's folder; None if there is none.

    Raises: ValueError if it is damaged.
    """
    path = folder / REGISTRATION
    if not path.exists():
        return None
    stored = read_json(path)
    if not all(isinstance(stored.get(key), str) for key in REGISTERED) or not isinstance(stored.get("rules"), dict):
        raise ValueError(f"{path} is damaged: it has no digest, commit, date and rules; restore it from a copy")
    return stored


def fields(path: Path) -> dict[str, Any]:
    """Return the fields of :class:`CampaignFile` from a file.

    Raises: OSError if it cannot be opened; ValueError, with a message that names the file, if it is damaged.
    """
    stored = read_json(path)
    try:
        found = _fields(stored)
        if found["seeds"].tune and found["tolerance"] is None:
            selection.next_runs(found["grid"], {}, found["mode"], found["seeds"].tune)  # checks the grid
        return {"path": path} | found
    except KeyError as error:
        raise ValueError(f"{path} has no {error}") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path}: {error}") from None


def _fields(stored: dict[str, Any]) -> dict[str, Any]:
    if stored["format"] != FORMAT:
        raise ValueError(f"its format is {stored['format']!r:.40}, and this version reads {FORMAT}")
    jobs = tuple(_job(job) for job in _list(stored, "jobs"))
    if len(tasks := {job.folder.partition("/")[0] for job in jobs}) > 1:
        raise ValueError(f"its jobs are of several tasks, {', '.join(sorted(tasks))}")
    norms = tuple(_text(norm, "norms") for norm in _list(stored, "norms"))
    rules = stored.get("rules", OCTAVE_RULES)
    if rules not in SEED_KEYS:
        raise ValueError(f"its rules have the version {rules!r:.40}, and this version knows {RULES}")
    supersedes, tolerance = stored.get("supersedes"), stored.get("tolerance")
    ladder = {key: tuple(_number(value, key) for value in values) for key, values in stored.get("ladder", {}).items()}
    if unknown := {job.norm for job in jobs} - {arm for norm in norms for arm in on_ladder(norm, ladder)}:
        raise ValueError(f"its jobs name {', '.join(sorted(unknown))}, which is not among its norms")
    return {
        **{key: _text(stored[key], key) for key in ("name", "question", "rate")},
        "command": tuple(_text(word, "command") for word in _list({"command": [stored["name"]]} | stored, "command")),
        "runs": _typed(stored["runs"], dict, "runs"),
        "tuning_runs": _typed(stored.get("tuning_runs", {}), dict, "tuning_runs"),
        "mode": _choice(stored["mode"], ("min", "max"), "mode"),
        "tuned_by": _metric(stored, "tuned_by"),
        "score": _metric(stored, "score"),
        "norms": norms,
        "grid": tuple(_number(rate, "grid") for rate in _list(stored, "grid")),
        "rules": rules,
        "ladder": ladder,
        "tolerance": None if tolerance is None else _number(tolerance, "tolerance"),
        "supersedes": None if supersedes is None else _text(supersedes, "supersedes"),
        "seeds": _seeds(stored["seeds"], *SEED_KEYS[rules]),
        "claims": tuple(_claim(claim, norms) for claim in _list(stored, "claims")),
        "jobs": jobs,
        "registered": None if stored["registered"] is None else _registered(stored["registered"]),
    }


def _job(stored: dict[str, Any]) -> Job:
    folder = _text(stored["folder"], "folder")
    if not record.can_be_run_folder(folder):
        raise ValueError(f"the folder {folder!r:.80} of a job is not <task>/<setting>/<series>/seed<k>")
    return Job(
        _choice(stored["stage"], get_args(Stage), "stage"),
        _text(stored["norm"], "norm"),
        _number(stored["rate"], "rate"),
        _count(stored["seed"], "seed"),
        folder,
    )


def _seeds(stored: dict[str, Any], least: str, most: str) -> Seeds:
    needed = None if stored["needed"] is None else _number_of_seeds(stored, "needed")
    tune = tuple(_count(seed, "tune") for seed in _list(stored, "tune"))
    return Seeds(tune, _number_of_seeds(stored, least), _number_of_seeds(stored, most), needed)


def _number_of_seeds(stored: dict[str, Any], key: str) -> int:
    if (count := _count(stored[key], key)) > seeds.MOST:
        raise ValueError(f"its {key} has {count!s:.40} instead of a number of at most {seeds.MOST}")
    return count


def _registered(stored: dict[str, Any]) -> Registered:
    texts = [stored[key] if stored[key] is None else _text(stored[key], key) for key in Registered._fields]
    return Registered(str(texts[0]), texts[1], str(texts[2]), texts[3])


def _claim(stored: dict[str, Any], norms: tuple[str, ...]) -> Claim:
    for key in ("a", "b"):
        _choice(stored[key], norms, key)
    for key, expected in (("claim", str), ("family", str | None), ("seeds", int | None), ("untrained", float | None)):
        if not isinstance(stored.get(key), expected):
            raise ValueError(f"the {key} of a claim is {stored.get(key)!r:.40}")
    return Claim(**stored)


def _metric(stored: dict[str, Any], key: str) -> Metric:
    words = _text(stored[key], key).split()
    if len(words) != 2:
        raise ValueError(f"its {key} is {stored[key]!r:.40} instead of a split and a metric, such as 'test error'")
    return Metric(*words)


def _list(stored: dict[str, Any], key: str) -> list[Any]:
    return _typed(stored[key], list, key)


def _typed(value: Any, expected: Callable[..., T], key: str) -> T:
    if type(value) is not expected:
        raise ValueError(f"its {key} is {value!r:.40}")
    return value


def _text(value: Any, key: str) -> str:
    return _typed(value, str, key)


def _choice(value: Any, options: tuple[str, ...], key: str) -> Any:
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"its {key} is {value!r:.40} instead of one of {', '.join(options)}")
    return value


def _count(value: Any, key: str) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"its {key} has {value!r:.40} instead of a number of at least 0")
    return value


def _number(value: Any, key: str) -> float:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ValueError(f"its {key} has {value!r:.40} instead of a number greater than 0")
    return float(value)
