"""Read and write ``campaign.json``, which lists a campaign's runs, claims and rules, and the registration beside it.

They may be damaged, or come from others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

from rmsexp.records import record
from rmsexp.rules import measures, seeds, selection
from rmsexp.rules.claims import Claim
from rmsexp.system import checks, clock
from rmsexp.system.readers import read_json
from rmsexp.system.typed import Between, read_typed, typed_of

FILE = "campaign.json"
REGISTRATION = "registered.json"  # beside the file, from the first tuning run on: the rules, and the commit of the code
FORMAT = 1
# Versions of the rules. Campaigns that began before 28 November 2026 have the first: rates an octave apart, and in JSON
# other keys for the smallest and the largest number of seeds.
OCTAVE_RULES, RULES = 1, 2
TUNING = {OCTAVE_RULES: selection.OCTAVES, RULES: selection.QUARTERS}
# Each stage has seeds of its own. Final seeds count from 0, and there are at most 1000 of them.
TUNING_SEEDS, PILOT_SEED, TIMING_SEED = (1000, 1001, 1002), 2000, 3000
OCTAVE_KEYS = {"min_seeds": "look", "max_seeds": "most"}
NO_GIT = "code "  # in the place of a commit where there is none, before a digest of files
Stage = Literal["pilot", "tune", "final"]


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


@dataclass(frozen=True)
class Seeds:
    """The tuning seeds, and numbers of final seeds: at least, at most, and as needed (None: not known yet)."""

    tune: tuple[int, ...]
    min_seeds: int
    max_seeds: int
    needed: int | None

    def __post_init__(self) -> None:
        for key in ("min_seeds", "max_seeds", "needed"):
            if (number := getattr(self, key)) is not None:
                checks.at_least(key, number, 0, seeds.MOST)


class Registered(NamedTuple):
    """How the rules of the campaign, its file without the part ``timing``, were registered.

    Attributes:
        digest: the digest of the rules.
        commit: the commit of the code; None if it was not known.
        date: the date.
        changed: the keys of the rules that have changed since; None if there are none.
    """

    digest: str
    commit: str | None
    date: str
    changed: str | None


class Registration(NamedTuple):
    """The content of ``registered.json``: rules (:meth:`.question.Question.rules`), and a digest of the code."""

    digest: str
    commit: str
    date: str
    rules: dict[str, Any]
    code: str | None = None


class Metric(NamedTuple):
    """A metric on a split, such as ("test", "error")."""

    split: str
    metric: str


@dataclass(frozen=True, kw_only=True)
class CampaignFile:
    """The content of a ``campaign.json``.

    Attributes:
        name, question: the campaign's name, and what it shall answer.
        command: the words after ``python -m rmsexp.campaign``, without those that say where and how runs are done; the
            name alone if the file does not have them.
        runs: the overrides that all runs have.
        rate: the key that is tuned, such as "optim.lr".
        mode: "min" or "max", the better direction of both metrics.
        norms: the names of the norms.
        grid: the rates that tuning starts with, ascending; :mod:`rmsexp.rules.selection` extends them.
        tuned_by: the metric by which rates are chosen.
        score: the metric that claims are about.
        rules: the version of the rules by which it was planned and is decided.
        supersedes: the name of an earlier campaign whose verdicts this one replaces, once it is decided.
        tuning_runs: the overrides that tuning runs alone have.
        ladder: keys with their values on the ladder on which the norms are compared; empty for none.
        tolerance: by how much a score may be worse within a stable range, if claims are about such ranges.
        seeds: the tuning seeds and the numbers of final seeds.
        claims: the claims; their margins are in the displayed unit, such as percentage points.
        jobs: the runs planned so far.
        registered: None before the first run after the pilot.
    """

    name: str
    question: str
    command: tuple[str, ...]
    runs: dict[str, Any]
    rate: str
    mode: Literal["min", "max"]
    norms: tuple[str, ...]
    grid: tuple[float, ...]
    tuned_by: Metric
    score: Metric
    rules: Annotated[int, Between(OCTAVE_RULES, RULES)] = OCTAVE_RULES
    supersedes: str | None = None
    tuning_runs: dict[str, Any] = field(default_factory=dict)
    ladder: dict[str, tuple[float, ...]] = field(default_factory=dict)
    tolerance: float | None = None
    seeds: Seeds
    claims: tuple[Claim, ...]
    jobs: tuple[Job, ...]
    registered: Registered | None

    def __post_init__(self) -> None:
        for job in self.jobs:
            parts = job.folder.split("/")
            if len(parts) != 4 or not all(part.strip(".") for part in parts):
                raise ValueError(f"the folder {job.folder!r:.80} of a job is not <task>/<setting>/<series>/seed<k>")
        for value in (value for values in (self.grid, *self.ladder.values()) for value in values):
            checks.positive("a rate of the grid, or a value of the ladder,", value)
        arms = {arm for of_norm in self.arms.values() for arm in of_norm}
        claimed = {norm for claim in self.claims for norm in (claim.a, claim.b)}
        if unknown := {job.norm for job in self.jobs} - arms | claimed - {*self.norms}:
            raise ValueError(f"jobs or claims name {', '.join(sorted(unknown))}, which is not among the norms")
        if self.seeds.tune and self.tolerance is None:
            selection.tune(self.grid, {}, self.mode, self.seeds.tune)  # checks the grid

    @property
    def task(self) -> str:
        """The task of all runs; "unknown" before there are any."""
        return next((job.folder.partition("/")[0] for job in self.jobs), str(self.runs.get("task", "unknown")))

    @property
    def stages(self) -> dict[str, list[Job]]:
        """The runs planned so far, by stage."""
        return {str(stage): [job for job in self.jobs if job.stage == stage] for stage, *_ in self.jobs}

    @property
    def longer(self) -> float:
        """How many steps a final run has for each of a tuning run, as far as the campaign states it."""
        final, tuning = (runs.get("schedule.steps") for runs in (self.runs, self.tuning_runs))
        return 1.0 if None in (final, tuning) else float(str(final)) / float(str(tuning))

    @property
    def is_tuned(self) -> bool:
        """Whether rates are chosen; otherwise all norms have the only rate of the grid, or every rate."""
        return self.tolerance is None and (self.rules == OCTAVE_RULES or len(self.grid) > 1)

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


def on_ladder(norm: str, ladder: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    """Return the names of a norm on a ladder, such as "rms+schedule.steps=500"; the norm itself without a ladder."""
    places = zip(*ladder.values(), strict=True) if ladder else [()]
    return tuple("+".join([norm, *map("{}={}".format, ladder, map(plain, values))]) for values in places)


def plain(value: float) -> str:
    """Return a number as it is typed: keys of integers refuse 16.0, and keys of numbers take 16, too."""
    return repr(int(value) if value.is_integer() else value)


def moment(text: object) -> float | None:
    """Return the date and time in a record as seconds since 1970; None if it has none."""
    with suppress(ValueError):
        return clock.timestamp(str(text))
    return None


def find(root: Path) -> Iterator[Path]:
    """Yield the ``campaign.json`` of each campaign below a folder, which may hold several results folders."""
    yield from record.find(root, f"campaigns/*/{FILE}")


def digest(rules: dict[str, Any]) -> str:
    """Return the digest of a campaign's rules, which are plain values."""
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()


def changed_keys(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ. Keys without a value, which older versions did not write, do not count."""

    def stated(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [stated(item) for item in value]
        if isinstance(value, dict):
            return {key: stated(item) for key, item in value.items() if item not in (None, {})}
        return value

    before, after = stated(then), stated(now)
    return [key for key in dict.fromkeys([*before, *after]) if before.get(key) != after.get(key)]


def registration(folder: Path) -> Registration | None:
    """Return the registration in a campaign's folder; None if there is none. Raises: ValueError if it is damaged."""
    path = folder / REGISTRATION
    return read_typed(path, Registration) if path.exists() else None


def read(path: Path) -> CampaignFile:
    """Return the content of a file.

    Raises: OSError if it cannot be opened; ValueError, with a message that names the file, if it is damaged. A key that
        is not known is damage: it may say how to decide the claims.
    """
    stored = read_json(path)
    if (form := stored.pop("format", None)) != FORMAT:
        raise ValueError(f"{path}: format is {form!r:.40}, and this version reads {FORMAT}")
    for key in ("tuned_by", "score"):
        if isinstance(text := stored.get(key), str):
            stored[key] = dict(zip(Metric._fields, text.split(), strict=False))
    if isinstance(numbers := stored.get("seeds"), dict) and stored.get("rules", OCTAVE_RULES) == OCTAVE_RULES:
        today = {old: key for key, old in OCTAVE_KEYS.items()}
        stored["seeds"] = {today.get(key, key): value for key, value in numbers.items()}
    return typed_of(path, CampaignFile, {"command": [stored.get("name")]} | stored, refuse_unknown=True)


def text(file: CampaignFile) -> str:
    """Return the text of a file with this content. Keys of later rules are left out where they have no effect."""
    old = OCTAVE_KEYS if file.rules == OCTAVE_RULES else {}
    seeds = {old.get(key, key): value for key, value in asdict(file.seeds).items()}
    shown: dict[str, Any] = {"tuned_by": " ".join(file.tuned_by), "score": " ".join(file.score), "seeds": seeds}
    shown |= {"claims": [asdict(claim) for claim in file.claims], "jobs": [job._asdict() for job in file.jobs]}
    shown["registered"] = None if file.registered is None else file.registered._asdict()
    content: dict[str, Any] = {"format": FORMAT}
    content |= {each.name: shown.get(each.name, getattr(file, each.name)) for each in fields(CampaignFile)}
    later = ("rules", "supersedes") if file.rules == OCTAVE_RULES else ()
    unused = [key for key in ("tuning_runs", "ladder", "tolerance") if not content[key]]
    return json.dumps({key: value for key, value in content.items() if key not in (*later, *unused)}, indent=1) + "\n"
