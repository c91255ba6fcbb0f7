"""The files of a campaign.

``campaign.json`` lists its runs, claims and rules, and ``registered.json`` is its registration. Both may be damaged, or
come from others. The config in ``configs/campaign`` defines the campaign (:class:`Content`); most of its keys can be
overridden on the command line.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rmsexp import config
from rmsexp.config.schema import as_config, fit
from rmsexp.config.timing import ProcessOptions
from rmsexp.records import record
from rmsexp.rules import measures, seeds, selection
from rmsexp.rules.claims import EQUIVALENCE, Claim
from rmsexp.system import checks, clock
from rmsexp.system.readers import Between, read_json, read_typed, typed, typed_of

FILE = "campaign.json"
REGISTRATION = "registered.json"  # beside the file, from the first tuning run on: the rules, and the commit of the code
FORMAT = 1
# Versions of the rules (:mod:`rmsexp.rules.selection`). The first also has, in JSON, other keys for the smallest and
# the largest number of seeds.
OCTAVE_RULES, RULES = 1, 3
TUNING = {OCTAVE_RULES: selection.OCTAVES, 2: selection.QUARTERS, RULES: selection.SCATTER}
# Each stage has seeds of its own. Final seeds count from 0, and there are at most 1000 of them.
TUNING_SEEDS, TIMING_SEED = tuple(range(1000, 1000 + selection.TUNING_SEEDS)), 3000
REGISTERED = ("digest", "commit", "date", "changed")  # keys of a registration in ``campaign.json``
OCTAVE_KEYS = {"min_seeds": "look", "max_seeds": "most"}
NO_GIT = "code "  # in the place of a commit where there is none, before a digest of files
Count = Annotated[int, Between(0, seeds.MOST)]
Stage = Literal["pilot", "tune", "final"]  # pilot runs: only of campaigns of the first rules


class Job(NamedTuple):
    """A run of a campaign: its stage, norm, value of the tuned key, seed, and folder below the results.

    ``norm``: the name in the campaign, such as "rms" or "prms+p=0.5"; on a ladder, with the values there
    (:func:`on_ladder`). ``folder``: ``<task>/<setting>/<series>/seed<k>``.
    """

    stage: Stage
    norm: str
    rate: float
    seed: int
    folder: str


@dataclass(frozen=True)
class Seeds:
    """Tuning seeds; the least, greatest and needed number of final seeds (needed is None until known)."""

    tune: tuple[int, ...]
    min_seeds: Count
    max_seeds: Count
    needed: Count | None


class Registration(NamedTuple):
    """The registration of a campaign's rules (:meth:`.question.Question.rules`), its file without the part ``timing``.

    ``digest``: of the rules. ``commit``: of the code (:func:`commit_of`); None if it was not known. ``changed``: the
    keys of the rules that have changed since, joined with commas, or None. Only ``campaign.json`` has it, and only
    ``registered.json`` has ``rules`` and ``code``, a digest of the code.
    """

    digest: str
    commit: str | None
    date: str
    changed: str | None = None
    rules: dict[str, Any] | None = None
    code: str | None = None


class Metric(NamedTuple):
    """A metric on a split, such as ("test", "error")."""

    split: str
    metric: str


@dataclass(frozen=True, kw_only=True)
class CampaignFile:
    """The content of a ``campaign.json``. Keys that are not explained here are as in :class:`Content`.

    Attributes:
        command: the words after ``python -m rmsexp.campaign``, without those that say where and how runs are done; the
            name alone if the file does not have them.
        rate: the key that is tuned, such as "optim.lr".
        mode: "min" or "max", the better direction of both metrics.
        grid: the rates that tuning starts with, ascending; :mod:`rmsexp.rules.selection` extends them.
        tuned_by, score: the metric by which rates are chosen, and the one that claims are about.
        tuning_runs: the overrides that tuning runs alone have.
        tolerance: as in :class:`Final`.
        claims: their margins are in the displayed unit, such as percentage points.
        jobs: the runs planned so far.
        registered: None until the campaign is registered.
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
    registered: Registration | None

    @property
    def task(self) -> str:
        """The task of all runs; "unknown" if no run is planned yet and ``runs`` does not name it."""
        return next((job.folder.partition("/")[0] for job in self.jobs), str(self.runs.get("task", "unknown")))

    @property
    def stages(self) -> dict[str, list[Job]]:
        """The runs planned so far, by stage."""
        return {str(stage): [job for job in self.jobs if job.stage == stage] for stage, *_ in self.jobs}

    @property
    def longer(self) -> float:
        """The steps of a final run divided by those of a tuning run; 1 unless the campaign states both."""
        final, tuning = (runs.get("schedule.steps") for runs in (self.runs, self.tuning_runs))
        return 1.0 if None in (final, tuning) else float(str(final)) / float(str(tuning))

    @property
    def is_tuned(self) -> bool:
        """Whether rates are chosen. If not, each norm has the grid's only rate or, for stable ranges, all its rates."""
        return self.tolerance is None and (self.rules == OCTAVE_RULES or len(self.grid) > 1)

    @property
    def arms(self) -> dict[str, tuple[str, ...]]:
        """For each norm, its arms: what is trained with a rate of its own. Without a ladder this is the norm itself;
        with one it is the norm with each of the ladder's values, such as "rms+schedule.steps=500", of which the first
        and the last are tuned.
        """
        return {norm: on_ladder(norm, self.ladder) for norm in self.norms}

    @property
    def measure(self) -> str:
        """What the claims are about: "score", "slope" or "stable range" (:mod:`rmsexp.rules.measures`)."""
        if self.tolerance is not None:
            return measures.RANGE
        return measures.SLOPE if self.ladder else measures.SCORE


def on_ladder(norm: str, ladder: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    """Return the names of a norm on a ladder, such as "rms+schedule.steps=500"; the norm itself without a ladder."""
    places = zip(*ladder.values(), strict=True) if ladder else [()]
    return tuple("+".join([norm, *map("{}={}".format, ladder, map(plain, values))]) for values in places)


def plain(value: float) -> str:
    """Return a number as an override has it: 16 for 16.0, which keys of integers refuse."""
    return repr(int(value) if float(value).is_integer() else value)


def moment(text: object) -> float | None:
    """Return the date and time in a text as seconds since 1970; None if ``text`` is no date and time."""
    with suppress(ValueError):
        return clock.timestamp(str(text))
    return None


def commit_of(git: Mapping[str, Any], code: object) -> str:
    """Return the commit in ``git``, with "+" if there may be changes; without one, ``NO_GIT`` and ``code``."""
    if not git.get("commit"):
        return f"{NO_GIT}{code}"
    return f"{git['commit']}{'' if git.get('dirty', False) is False else '+'}"


def find(root: Path) -> list[Path]:
    """Return the ``campaign.json`` of each campaign below a folder, which may hold several results folders."""
    return record.find(root, f"campaigns/*/{FILE}")


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
    """Return the content of a ``campaign.json``.

    Raises: OSError if it cannot be opened; ValueError, with a message that names the file, if it is damaged or has an
        unknown key, which may say how to decide the claims.
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
    shown["registered"] = file.registered and dict(zip(REGISTERED, file.registered, strict=False))
    content: dict[str, Any] = {"format": FORMAT}
    content |= {each.name: shown.get(each.name, getattr(file, each.name)) for each in fields(CampaignFile)}
    later = ("rules", "supersedes") if file.rules == OCTAVE_RULES else ()
    unused = [key for key in ("tuning_runs", "ladder", "tolerance") if not content[key]]
    return json.dumps({key: value for key, value in content.items() if key not in (*later, *unused)}, indent=1) + "\n"


# --- the file of configs that asks for a campaign


@dataclass
class Tune:
    """How learning rates are chosen.

    ``over``: the tuned key with its rates, each twice the one before; by default ``optim.lr`` with half the recipe's
    rate, this rate and twice it. With a single rate, all norms have it, and nothing is tuned. ``by``: the metric by
    which rates are chosen, such as "valid error"; by default the task's. ``runs``: overrides of tuning runs alone.
    """

    over: dict[str, list[float]] = field(default_factory=dict)
    by: str | None = None
    runs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.over) > 1:
            raise ValueError(f"tune.over names {len(self.over)} keys ({', '.join(self.over)}); tune one of them")


@dataclass
class Final:
    """The runs that claims are about.

    ``min_seeds``: the number of seeds at first; then as many as their spread asks for, at most ``max_seeds``.
    ``score``: the metric, such as "test error"; by default the task's. ``tolerance``: claims are about the stable
    range of rates, within which the score is at most this much worse, in the displayed unit, than at the best rate
    (:mod:`rmsexp.rules.measures`). Then nothing is tuned: every rate of ``tune.over`` is run with one seed, and the
    best rate and those beside the ends of the range with ``min_seeds``; ``max_seeds`` is not used.
    """

    min_seeds: int = 8
    max_seeds: int = 16
    score: str | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        checks.at_least("final.min_seeds", self.min_seeds, 2)
        checks.at_least("final.max_seeds", self.max_seeds, self.min_seeds, seeds.MOST)
        checks.positive("final.tolerance", self.tolerance)


@dataclass
class Timing(ProcessOptions):
    """Interleaved timing of training steps, after the runs. ``norms``: the norms, or ``[all]``; none by default."""

    norms: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isinstance(norm, str) for norm in self.norms):  # OmegaConf lets lists pass
            raise ValueError("timing.norms must be a list of names, as in timing.norms=[ln,rms]")


@dataclass
class Content:
    """The keys of a campaign's file, except ``claims``.

    ``runs``: overrides of all runs. ``norms``: the norms, with options as in prms+p=0.5. ``margin``: if the file has no
    claims, that of the default ones: each norm equals the first. ``supersedes``: the name of an earlier campaign whose
    verdicts this one replaces, once this one is decided. ``ladder``: keys of model or schedule with their values, as in
    ``{schedule.steps: [500, 1000, 2000], schedule.warmup: [50, 100, 200]}``; then claims are about the slope of the
    score over the first key (:mod:`rmsexp.rules.measures`). ``rules``: the version of the campaign's rules. ``pilot``:
    only with the first rules, ``{rate: R}``: each norm has a first run at rate R, before tuning.
    """

    question: str = ""
    runs: dict[str, Any] = field(default_factory=dict)
    norms: list[str] = field(default_factory=list)
    margin: float | None = None
    supersedes: str | None = None
    ladder: dict[str, list[float]] = field(default_factory=dict)
    pilot: dict[str, Any] = field(default_factory=dict)
    tune: Tune = field(default_factory=Tune)
    final: Final = field(default_factory=Final)
    rules: int = RULES
    timing: Timing = field(default_factory=Timing)

    def __post_init__(self) -> None:
        checks.not_empty("question", self.question)
        checks.at_least("rules", self.rules, min(TUNING), RULES)
        if len(self.norms) < 2 or len(set(self.norms)) < len(self.norms):
            raise ValueError("norms must name at least two norms, each once, as in norms=[ln,rms]")
        if not self.ladder:
            return
        key, sizes = next(iter(self.ladder.items()))
        if len(sizes) < 2 or sorted({*sizes}) != sizes or sizes[0] <= 0:
            raise ValueError(f"ladder: the values of {key} must be at least two, ascending, above 0")
        if uneven := [name for name, values in self.ladder.items() if len(values) != len(sizes)]:
            raise ValueError(f"ladder: {uneven[0]} must have as many values as {key}, which has {len(sizes)}")
        if others := [name for name in self.ladder if not name.startswith(("model.", "schedule."))]:
            raise ValueError(f"ladder: {others[0]} must be a key of model or schedule, such as schedule.steps")
        if self.final.tolerance is not None:
            raise ValueError("claims are about slopes or about stable ranges: leave out ladder or final.tolerance")


# Keys of the campaign itself, not of its runs, which can be set on the command line.
KEYS = [key.name for key in fields(Content) if key.name not in ("runs", "rules", "pilot")]


def read_content(stored: dict[str, Any], words: Sequence[str]) -> tuple[Content, tuple[Claim, ...], list[str]]:
    """Return a file's content as ``words`` change it, the file's claims, and the other words, which are of runs.

    Raises: ConfigError or ValueError for a mistake in the file or in the words.
    """
    own = [word for word in words if re.split(r"[.=]", word, maxsplit=1)[0] in KEYS]
    claims = stored.pop("claims", [])
    try:
        merged = OmegaConf.to_container(OmegaConf.merge(as_config(stored), config.from_dotlist(own)))
    except OmegaConfBaseException:
        raise config.ConfigError(
            f"{' '.join(own)}: a list stands where keys belong, or keys where a list does"
        ) from None
    assert isinstance(merged, dict)
    tune = merged.get("tune")
    for part, key in ((tune if isinstance(tune, dict) else {}, "over"), (merged, "ladder")):
        if isinstance(part.get(key), dict):  # tune.over.optim.lr=[…] makes nested dicts
            part[key] = {name: _floats(values) for name, values in config.flatten(part[key]).items()}
    content: Content = fit(Content, OmegaConf.create(merged), "")
    return content, _claims(content, claims), [word for word in words if word not in own]


def _floats(values: Any) -> Any:
    """Return a list with its integers as floats, which OmegaConf requires here; and any other value as it is."""
    return [float(value) if type(value) is int else value for value in values] if isinstance(values, list) else values


def _claims(content: Content, stored: Any) -> tuple[Claim, ...]:
    """Return the claims of a file, ``stored``; for an empty list, that each norm equals the first."""
    if stored and content.margin is not None:
        raise config.ConfigError("margin= has no effect: the file states the claims and their margins")
    if stored == []:
        if content.margin is None:
            raise config.ConfigError(
                "the file has no claims, so margin= is needed: the largest difference that does not matter"
            )
        first, *others = content.norms
        shared = {"test": EQUIVALENCE, "b": first, "margin": content.margin}
        stored = [{"claim": f"{norm} equals {first}", "a": norm} | shared for norm in others]
    claims: tuple[Claim, ...] = typed(tuple[Claim, ...], stored, "claims", refuse=True)
    claimed = {norm for claim in claims for norm in (claim.a, claim.b)}
    if unknown := claimed - {*content.norms}:
        raise config.ConfigError(f"claims name {', '.join(sorted(unknown))}, which is not among the norms")
    if idle := [norm for norm in content.norms if norm not in claimed]:
        raise config.ConfigError(f"norms: no claim is about {', '.join(idle)}; leave it out, or add a claim about it")
    if (content.ladder or content.final.tolerance is not None) and any(each.untrained is not None for each in claims):
        raise config.ConfigError("untrained: it is a score, and these claims compare slopes or ranges; leave it out")
    least = content.final.min_seeds
    if many := [claim.claim for claim in claims if claim.seeds is not None and claim.seeds > least]:
        raise config.ConfigError(f"claims: {many[0]!r} has more seeds than final.min_seeds={least}; raise that")
    return claims
