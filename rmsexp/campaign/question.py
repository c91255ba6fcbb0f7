"""The file of a campaign: its keys, how it is read and checked, and the overrides of its runs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rmsexp import checks, config
from rmsexp.campaign_file import Metric, Stage
from rmsexp.readers import read_yaml
from rmsexp.rules import score, selection
from rmsexp.rules.claims import EQUIVALENCE, Claim
from rmsexp.schema import fit

GROUP = "campaign"
KEYS = re.compile(r"(question|norms|margin|pilot\.[^=]*|tune\.[^=]*|final\.[^=]*)=")  # words about the campaign itself
PLACES = ("results=", "data.root=", "threads=", "device=")  # words that say where and how runs are done, not which
TUNING_SEEDS = 3


@dataclass
class Pilot:
    """A first run of each norm, at one rate, which shows whether the norm trains. ``rate`` None: there is no pilot."""

    rate: float | None = None
    seed: int = 2000


@dataclass
class Tune:
    """How learning rates are chosen.

    ``over``: the tuned key with its rates, ascending and an octave apart; by default those from half the recipe's rate
    to twice it. ``first_seed``: the first of three seeds. ``by``: the metric by which rates are chosen, such as "valid
    error"; by default the task's.
    """

    over: dict[str, list[float]] = field(default_factory=dict)
    first_seed: int = 1000
    by: str | None = None


@dataclass
class Seeds:
    """Numbers of final seeds: ``look`` at first; then as many as the spread asks for, at most ``most``."""

    look: int = 8
    most: int = 16

    def __post_init__(self) -> None:
        checks.at_least("final.seeds.look", self.look, 2)
        checks.at_least("final.seeds.most", self.most, self.look)


@dataclass
class Final:
    """The runs that claims are about. ``score``: the metric, such as "test error"; by default the task's."""

    seeds: Seeds = field(default_factory=Seeds)
    score: str | None = None


@dataclass
class Content:
    """The keys of a campaign's file, except ``claims``.

    ``runs``: overrides of all runs. ``norms``: the norms, with options as in prms+p=0.5. ``margin``: of the claims that
    are made if the file has none: each norm equals the first.
    """

    question: str = MISSING
    runs: dict[str, Any] = field(default_factory=dict)
    norms: list[str] = MISSING
    margin: float | None = None
    pilot: Pilot = field(default_factory=Pilot)
    tune: Tune = field(default_factory=Tune)
    final: Final = field(default_factory=Final)

    def __post_init__(self) -> None:
        checks.not_empty("question", self.question)
        if len(self.norms) < 2 or len(set(self.norms)) < len(self.norms):
            raise ValueError("norms must name at least two norms, each once, as in norms=[ln,rms]")
        if len(self.tune.over) > 1:
            raise ValueError(f"tune.over names {len(self.tune.over)} keys; tune one, such as optim.lr")


@dataclass(frozen=True)
class Question:
    """A checked campaign.

    ``name``: that of its file, with the changes that words of the command line make. ``words``: the overrides that all
    runs have, from the file and from the command line.
    """

    name: str
    content: Content
    claims: tuple[Claim, ...]
    words: tuple[str, ...]
    config_dir: str | None

    @cached_property
    def recipe(self) -> config.Job:
        """A run of the first norm at the recipe's rate."""
        return self.job("final", self.content.norms[0], None, 0)

    @property
    def results(self) -> Path:
        return config.expanded(self.recipe.config.results)

    @property
    def folder(self) -> Path:
        return self.results / "campaigns" / self.name

    @property
    def rate(self) -> str:
        """The tuned key."""
        return next(iter(self.content.tune.over), "optim.lr")

    @cached_property
    def grid(self) -> tuple[float, ...]:
        rates = self.content.tune.over.get(self.rate)
        middle = self.recipe.config.optim.lr
        return tuple(rates if rates is not None else (middle / 2, middle, 2 * middle))

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        first = self.content.tune.first_seed
        return tuple(range(first, first + TUNING_SEEDS))

    @cached_property
    def target(self) -> Any:
        """The target of the task, as its config sets it up."""
        from rmsexp import tasks  # imports torch

        return tasks.task_class(self.recipe.config.task).target

    @property
    def tuned_by(self) -> Metric:
        words = self.content.tune.by or f"valid {self.target.metric}"
        return _metric("tune.by", words, self.target.metric)

    @property
    def score(self) -> Metric:
        words = self.content.final.score or f"{self.target.split} {self.target.metric}"
        return _metric("final.score", words, self.target.metric)

    def job(self, stage: Stage, norm: str, rate: float | None, seed: int) -> config.Job:
        """Return a run. ``rate`` None: at the recipe's rate. Only final runs are evaluated on test splits."""
        evaluation = score.PLANS[0] if stage == "final" else score.PLANS[1]
        words = [f"evaluation={evaluation}", *config.norm_words(norm), f"seed={seed}"]
        if rate is not None:
            words.append(f"{self.rate}={rate!r}")
        return config.job([*self.words, *words], self.config_dir)

    def relative_folder(self, stage: Stage, norm: str, rate: float, seed: int) -> str:
        """Return the folder of a run below the results."""
        return f"{_setting_and_series(self, stage == 'final', norm, rate)}/seed{seed}"

    def rules(self) -> dict[str, Any]:
        """Return all that decides which runs are made and how they are judged, as plain values."""
        words = sorted(word for word in self.words if not word.startswith(PLACES))
        stated = asdict(self.content) | {"runs": words, "claims": [asdict(claim) for claim in self.claims]}
        return stated | {"grid": list(self.grid), "tuned_by": list(self.tuned_by), "score": list(self.score)}

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.rules(), sort_keys=True).encode()).hexdigest()

    def __hash__(self) -> int:
        return hash((self.name, self.words, self.config_dir))


@lru_cache(maxsize=1024)
def _setting_and_series(question: Question, final: bool, norm: str, rate: float) -> str:
    job = question.job("final" if final else "tune", norm, rate, 0)
    return str(job.folder.parent.relative_to(question.results))


def read(name: str, words: Sequence[str] = (), config_dir: str | None = None) -> Question:
    """Return the campaign ``name``, with the changes of ``words``: keys of the campaign, and overrides of all runs.

    Raises: ConfigError for an unknown name and for a mistake in the file or in the words.
    """
    path = config.file(GROUP, name, config_dir)
    try:
        stored = read_yaml(path)
    except (OSError, ValueError) as error:
        raise config.ConfigError(str(error)) from None
    claims = stored.pop("claims", [])
    own = [word for word in words if KEYS.match(word)]
    overrides = tuple(word for word in words if not KEYS.match(word))
    try:
        content = OmegaConf.merge(OmegaConf.create(stored), OmegaConf.from_dotlist(own))
    except OmegaConfBaseException as error:
        raise config.ConfigError(f"{path}: {str(error).partition(chr(10))[0]}") from None
    checked: Content = fit(Content, content, "")  # type: ignore[arg-type]
    runs = tuple(f"{key}={_word(value)}" for key, value in config.flatten(checked.runs).items())
    changes = "".join(f"+{word}" for word in sorted({*words}) if not word.startswith(PLACES))
    question = Question(
        name + config.shortened(re.sub(r"[\[\]{}'\" ]", "", changes).replace("/", "_").replace(",", "-")),
        checked,
        _claims(checked, claims, path),
        (*runs, *overrides),
        config_dir,
    )
    _check(question)
    return question


def _word(value: Any) -> str:
    """Return a value of a config as it is written on a command line."""
    return json.dumps(value) if value is None or isinstance(value, bool | list) else str(value)


def _metric(key: str, words: str, metric: str) -> Metric:
    split, _, name = words.partition(" ")
    if name != metric:
        raise config.ConfigError(f"{key}={words}: write a split and the task's metric, such as 'valid {metric}'")
    return Metric(split, name)


def _claims(content: Content, stored: Any, path: Path) -> tuple[Claim, ...]:
    """Return the claims of a file; if it has none, that each norm equals the first."""
    if not isinstance(stored, list) or not all(isinstance(claim, dict) for claim in stored):
        raise config.ConfigError(f"{path}: claims must be a list of claims, each with claim, test, a and b")
    first, *others = content.norms
    if not stored:
        if content.margin is None:
            raise config.ConfigError(
                f"{path} has no claims, so margin= is needed: the largest difference of the score that does not matter"
            )
        stored = [
            {"claim": f"{norm} equals {first}", "test": EQUIVALENCE, "a": norm, "b": first, "margin": content.margin}
            for norm in others
        ]
    found = []
    for number, claim in enumerate(stored):
        found.append(fit(Claim, OmegaConf.create(claim), f"claims[{number}]."))
        for norm in (found[-1].a, found[-1].b):
            checks.choice(f"claims[{number}]: norm", norm, content.norms)
    return tuple(found)


def _check(question: Question) -> None:
    """Raise ConfigError or ValueError unless the runs can be composed and the rates and seeds fit the rules."""
    content = question.content
    for norm in content.norms:
        question.job("final", norm, question.grid[0] if question.grid else None, 0)
    selection.next_runs(question.grid, {}, question.target.mode, question.tuning_seeds)
    _ = question.tuned_by, question.score
    stages = {
        "final": range(content.final.seeds.most),
        "tuning": question.tuning_seeds,
        "pilot": (content.pilot.seed,) if content.pilot.rate is not None else (),
    }
    used: dict[int, str] = {}
    for stage, seeds in stages.items():
        for seed in seeds:
            if seed in used:
                raise config.ConfigError(f"{stage} and {used[seed]} runs share seed {seed}; each stage needs its own")
            used[seed] = stage
