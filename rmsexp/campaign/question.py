"""A campaign as its file asks for it: how the file is read and checked, and the overrides of its runs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rmsexp import config
from rmsexp.campaign import campaign_file
from rmsexp.campaign.campaign_file import Metric, Stage
from rmsexp.campaign.content import Content
from rmsexp.campaign.results import Campaign
from rmsexp.config import classes, identity, score
from rmsexp.config.schema import as_config, fit
from rmsexp.rules import selection
from rmsexp.rules.claims import EQUIVALENCE, Claim
from rmsexp.system.command_line import config_dir_words, value_word
from rmsexp.system.readers import read_yaml

GROUP = "campaign"
# Keys of the campaign itself, not of its runs.
KEYS = ("question", "norms", "margin", "supersedes", "ladder", "pilot", "tune", "final", "timing", "claims")
# words that begin so say where runs are done, how they are logged and saved, but not which runs
WHERE_AND_HOW = (
    *("results=", "data.root=", "threads=", "device="),
    *("log_every=", "checkpoint_every=", "logger", "distributed.timeout="),
)
EXPONENT = re.compile(r"[-+]?\d+e[-+]?\d+", re.IGNORECASE)  # numbers that YAML takes for text, such as 1e-3
# of numbers of seeds: the keys before 28 November 2026 -> those of today
SEED_KEYS = dict(zip(*(campaign_file.SEED_KEYS[rules] for rules in sorted(campaign_file.SEED_KEYS)), strict=True))
# keys of runs that the campaign sets itself: by norms=[…], seeds of the stages, and schedule.steps
MANAGED = ("norm", "seed", "seeds", "evaluation", "max_steps", "eval_every", "force")


@dataclass(frozen=True)
class Question:
    """A checked campaign.

    ``file``: the name of its file. ``typed``: the words that were typed after it. ``words``: the overrides that all
    runs have, from the file and from the typed words. ``version``: that of the rules; a file that writes
    ``final.seeds`` has the first.
    """

    file: str
    typed: tuple[str, ...]
    content: Content
    claims: tuple[Claim, ...]
    words: tuple[str, ...]
    config_dir: str | None
    version: Literal[1, 2] = campaign_file.RULES

    @cached_property
    def name(self) -> str:
        """The name of the file, with the typed changes; it is the name of the campaign's folder.

        Words about the timing are not in it, because timing decides nothing.
        """
        left_out = (*WHERE_AND_HOW, "timing.")
        return folder_name(self.file, [word for word in self.typed if not word.startswith(left_out)])

    def command(self, places: bool = True) -> tuple[str, ...]:
        """Return the words after ``python -m rmsexp.campaign``; without ``WHERE_AND_HOW`` if ``places`` is false."""
        typed = (word for word in self.typed if places or not word.startswith(WHERE_AND_HOW))
        return (self.file, *typed, *config_dir_words(self.config_dir))

    @cached_property
    def recipe(self) -> config.Job:
        """A run of the first norm, at the recipe's rate."""
        return self.job("final", campaign_file.on_ladder(self.content.norms[0], self.content.ladder)[0], None, 0)

    @property
    def results(self) -> Path:
        return config.expanded(self.recipe.config.results)

    @property
    def folder(self) -> Path:
        return self.results / "campaigns" / self.name

    @cached_property
    def campaign(self) -> Campaign:
        """The campaign without any runs, and not registered."""
        content, final = self.content, self.content.final
        first = content.tune.first_seed
        return Campaign(
            path=self.folder / campaign_file.FILE,
            rules=self.version,
            supersedes=content.supersedes,
            name=self.name,
            question=content.question,
            command=self.command(places=False),
            runs=dict(word.split("=", 1) for word in self.words if not word.startswith(WHERE_AND_HOW)),
            tuning_runs=dict(word.split("=", 1) for word in self.tuning_words),
            rate=self.rate,
            mode=self.mode,
            tuned_by=self.tuned_by,
            score=self.score,
            norms=tuple(content.norms),
            ladder={key: tuple(values) for key, values in content.ladder.items()},
            tolerance=final.tolerance,
            grid=self.grid,
            seeds=campaign_file.Seeds(
                tuple(range(first, first + selection.TUNING_SEEDS)), final.min_seeds, final.max_seeds, None
            ),
            claims=self.claims,
            jobs=(),
            registered=None,
        )

    @property
    def rate(self) -> str:
        """The tuned key."""
        return next(iter(self.content.tune.over), "optim.lr")

    @cached_property
    def grid(self) -> tuple[float, ...]:
        rates = self.content.tune.over.get(self.rate)
        if rates is not None:
            return tuple(rates)
        # without what configs/pair has for the first norm alone, so that the order of the norms does not matter
        middle = replace(self, words=("pair=[]", *self.words)).recipe.config.optim.lr
        return (middle / 2, middle, 2 * middle)

    @property
    def tuning_words(self) -> tuple[str, ...]:
        """The overrides that tuning runs alone have."""
        return tuple(as_word(key, value) for key, value in config.flatten(self.content.tune.runs).items())

    @cached_property
    def target(self) -> Any:
        """The target of the task. Raises: ConfigError if it is known only once the task has its data."""
        recipe = self.recipe.config
        target = getattr(classes.task_class(recipe.task, recipe._target_), "target", None)
        if target is None:
            raise config.ConfigError(f"task={recipe.task}: a campaign needs target as an attribute of the task's class")
        return target

    @property
    def tuned_by(self) -> Metric:
        """The metric by which rates are chosen. Raises: ConfigError unless it is on validation examples."""
        metric = self._metric("tune.by", self.content.tune.by or f"valid {self.target.metric}")
        if metric.split != "valid":
            raise config.ConfigError(f"tune.by={' '.join(metric)}: rates are chosen on the split valid only")
        return metric

    @property
    def score(self) -> Metric:
        """The metric of the claims. Raises: ConfigError if runs are not evaluated on its split."""
        metric = self._metric("final.score", self.content.final.score or f"{self.target.split} {self.target.metric}")
        splits = dict.fromkeys(("valid", self.target.split, *self.recipe.config.test_splits))
        if metric.split not in splits:
            raise config.ConfigError(f"final.score={' '.join(metric)}: runs are evaluated on {', '.join(splits)}")
        return metric

    @property
    def mode(self) -> Literal["min", "max"]:
        """The better direction of the score."""
        return "max" if self.score.metric == self.target.metric and self.target.mode == "max" else "min"

    def _metric(self, key: str, words: str) -> Metric:
        """Return a metric. Raises: ConfigError unless it is the task's or the loss."""
        split, _, name = words.partition(" ")
        if name not in (self.target.metric, "loss"):
            expected = f"{self.target.split} {self.target.metric}"
            raise config.ConfigError(f"{key}={words}: write a split and the task's metric, such as '{expected}'")
        return Metric(split, name)

    def overrides(self, stage: Stage, norm: str, rate: float | None, seed: int) -> list[str]:
        """Return the overrides of a run. ``rate`` None: at the recipe's rate. Only final runs see test splits."""
        evaluation = score.PLANS[0] if stage == "final" else score.PLANS[1]
        own = self.tuning_words if stage == "tune" else ()
        words = [*self.words, *own, f"evaluation={evaluation}", *config.norm_words(norm), f"seed={seed}"]
        return words if rate is None else [*words, f"{self.rate}={campaign_file.plain(rate)}"]

    def job(self, stage: Stage, norm: str, rate: float | None, seed: int) -> config.Job:
        """Return a run, as :meth:`overrides`."""
        return config.job(self.overrides(stage, norm, rate, seed), self.config_dir)

    def timed(self) -> dict[str, config.Job]:
        """Return the runs whose steps are timed, at the recipe's rate, by series."""
        timing = self.content.timing
        jobs = [self.job("final", norm, None, timing.seed) for norm in timing.norms]
        config.check_one_setting("timing.norms", jobs)
        by_series = {job.series: job for job in jobs}
        if len(by_series) < len(jobs):
            raise config.ConfigError(f"timing.norms={','.join(timing.norms)} has a norm twice; leave one out")
        return by_series

    def relative_folder(self, stage: Stage, norm: str, rate: float, seed: int) -> str:
        """Return the folder of a run below the results."""
        return f"{_series_folder(self, stage == 'final', norm, rate)}/seed{seed}"

    def rules(self) -> dict[str, Any]:
        """Return all that decides which runs are made and how they are judged, as plain values.

        Timing is not among them: it decides nothing, and may change after the first final run.
        """
        words = sorted(word for word in self.words if not word.startswith(WHERE_AND_HOW))
        stated = asdict(self.content) | {"runs": words, "claims": [asdict(claim) for claim in self.claims]}
        del stated["timing"]
        for part, key in ((stated, "ladder"), (stated["final"], "tolerance"), (stated["tune"], "runs")):
            if not part[key]:  # as campaigns without it were registered
                del part[key]
        if self.version == campaign_file.OCTAVE_RULES:  # as they were registered
            del stated["supersedes"]
            stated["final"]["seeds"] = {old: stated["final"].pop(new) for old, new in SEED_KEYS.items()}
        else:
            stated["rules"] = self.version
        return stated | {"grid": list(self.grid), "tuned_by": list(self.tuned_by), "score": list(self.score)}

    def __hash__(self) -> int:
        return hash((self.file, self.typed, self.words, self.config_dir))


@lru_cache(maxsize=1024)
def _series_folder(question: Question, final: bool, norm: str, rate: float) -> str:
    """Return the folder of the runs that differ in the seed only, below the results. Composing is slow."""
    job = question.job("final" if final else "tune", norm, rate, 0)
    return str(job.folder.parent.relative_to(question.results))


def folder_name(file: str, words: Sequence[str]) -> str:
    """Return the name of a campaign's folder, such as "quality+norms=ln-mine+task=cifar10".

    It differs for different words, except for their order. If the readable form may not, it ends with a digest.
    """
    changes = sorted(words)
    text = "".join(f"+{word}" for word in changes)
    readable = re.sub(r"[^\w.=+-]", "_", re.sub(r"[\[\]'\" ]", "", file + text).replace(",", "-"))
    plain = all(re.fullmatch(r"[\w.]+=([\w.]+|\[[\w.,]+\])", word) for word in changes)
    if not plain or not re.fullmatch(r"[\w.-]+", file):
        readable += f"+{hashlib.sha256(json.dumps([file, changes]).encode()).hexdigest()[:8]}"
    return identity.shortened(readable)


def read(name: str, words: Sequence[str] = (), config_dir: str | None = None) -> Question:
    """Return the campaign ``name``, with the changes of ``words``: keys of the campaign, and overrides of all runs.

    Of several words with the same key the last one counts.

    Raises: ConfigError for an unknown name and for a mistake in the file or in the words.
    """
    path = config.file(GROUP, name, config_dir)
    typed = tuple({word.partition("=")[0]: word for word in words}.values())
    try:
        return _read(name, read_yaml(path), typed, config_dir)
    except (ValueError, OSError) as error:  # ConfigError is a ValueError, too
        raise config.ConfigError(f"campaign {name}: {error}") from None


def _read(name: str, stored: dict[str, Any], typed: tuple[str, ...], config_dir: str | None) -> Question:
    claims, version = stored.pop("claims", []), _renamed(stored)
    own = [word for word in typed if re.split(r"[.=]", word, maxsplit=1)[0] in KEYS]
    if any(word.startswith("claims") for word in own):
        raise config.ConfigError("claims can be changed in its file only")
    content = _content(stored, own)
    runs = {key: as_word(key, value) for key, value in config.flatten(content.runs).items()}
    changes = {word.partition("=")[0]: word for word in typed if word not in own}
    overrides = {"threads": "threads=1"} | runs | changes
    question = Question(name, typed, content, _claims(content, claims), tuple(overrides.values()), config_dir, version)
    refuse_managed((*question.words, *question.tuning_words), [*MANAGED, question.rate], "the campaign")
    _check_runs(question)
    _check_seeds(content)
    return question


def _renamed(stored: dict[str, Any]) -> Literal[1, 2]:
    """Rename the keys of a file from before 28 November 2026 in place; return the version of the rules that it has."""
    final = stored.get("final")
    if not isinstance(final, dict) or not isinstance(final.get("seeds"), dict):
        return campaign_file.RULES
    seeds = final.pop("seeds")
    stored["final"] = final | {SEED_KEYS.get(key, f"seeds.{key}"): value for key, value in seeds.items()}
    return campaign_file.OCTAVE_RULES


def _content(stored: dict[str, Any], own: Sequence[str]) -> Content:
    """Return the content of a file, changed by the typed words about the campaign itself."""
    try:
        merged = OmegaConf.to_container(OmegaConf.merge(as_config(stored), config.from_dotlist(own)))
    except OmegaConfBaseException:
        raise config.ConfigError(
            f"{' '.join(own)}: a list stands where keys belong, or keys where a list does"
        ) from None
    assert isinstance(merged, dict)
    tune = merged.get("tune")
    if isinstance(tune, dict) and isinstance(tune.get("over"), dict):  # tune.over.optim.lr=[…] makes nested dicts
        tune["over"] = {key: _floats(rates) for key, rates in config.flatten(tune["over"]).items()}
    if isinstance(ladder := merged.get("ladder"), dict):
        merged["ladder"] = {key: _floats(values) for key, values in config.flatten(ladder).items()}
    checked: Content = fit(Content, OmegaConf.create(merged), "")
    return checked


def _floats(values: Any) -> Any:
    """Return a list with its integers as floats, which OmegaConf requires here; and any other value as it is."""
    return [float(value) if type(value) is int else value for value in values] if isinstance(values, list) else values


def as_word(key: str, value: Any) -> str:
    """Return ``key=value`` as it is typed, with the home folder for ``~``, and with quotes where Hydra needs them."""
    if not isinstance(value, str | bool | list | dict | None):  # numbers, and what YAML takes for a date
        return f"{key}={value}"
    if isinstance(value, str) and EXPONENT.fullmatch(value) and not key.startswith(WHERE_AND_HOW):
        return f"{key}={value}"
    return value_word(key, str(config.expanded(value)) if isinstance(value, str) and value.startswith("~") else value)


def _claims(content: Content, stored: Any) -> tuple[Claim, ...]:
    """Return the claims of a file; if it has none, that each norm equals the first."""
    if not isinstance(stored, list) or not all(isinstance(claim, dict) for claim in stored):
        raise config.ConfigError("claims must be a list of claims, each with claim, test, a and b")
    if stored and content.margin is not None:
        raise config.ConfigError("margin= has no effect, because the file has claims with margins of their own")
    if not stored:
        if content.margin is None:
            raise config.ConfigError(
                "the file has no claims, so margin= is needed: the largest difference that does not matter"
            )
        first, *others = content.norms
        shared = {"test": EQUIVALENCE, "b": first, "margin": content.margin}
        stored = [{"claim": f"{norm} equals {first}", "a": norm} | shared for norm in others]
    claims = tuple(_claim(content, claim, f"claims[{number}]") for number, claim in enumerate(stored))
    claimed = {norm for claim in claims for norm in (claim.a, claim.b)}
    if idle := [norm for norm in content.norms if norm not in claimed]:
        raise config.ConfigError(f"norms: no claim is about {', '.join(idle)}; leave it out, or add a claim about it")
    return claims


def _claim(content: Content, stored: dict[str, Any], place: str) -> Claim:
    if missing := [key for key in ("claim", "test", "a", "b") if key not in stored]:
        raise config.ConfigError(f"{place} has no {missing[0]}; a claim has claim, test, a and b")
    claim: Claim = fit(Claim, as_config(stored), f"{place}.")
    if claim.seeds is not None and claim.seeds > (least := content.final.min_seeds):
        raise config.ConfigError(f"{place} has seeds: {claim.seeds}, but every norm has {least}: raise final.min_seeds")
    return claim


def refuse_managed(words: Sequence[str], managed: Collection[str], owner: str) -> None:
    """Raise ConfigError for an override of a key that its ``owner`` sets."""
    for override in config.parse(words):
        if override.key_or_group in managed:
            raise config.ConfigError(f"{override.input_line}: {owner} sets {override.key_or_group} itself")


def _check_runs(question: Question) -> None:
    """Raise ConfigError or ValueError unless all runs can be composed and the rates and metrics fit the rules."""
    content, grid, campaign = question.content, question.grid, question.campaign
    if content.final.tolerance is not None and (sorted({*grid}) != list(grid) or len(grid) < 3):
        raise config.ConfigError(f"tune.over.{question.rate}: a stable range needs at least three rates, ascending")
    if content.final.tolerance is None and question.tuned_by.metric != question.score.metric:
        raise config.ConfigError(
            f"tune.by is about {question.tuned_by.metric} and final.score about {question.score.metric}; rates are "
            "chosen by the metric of the claims"
        )
    for norm in campaign.every_arm:
        _series_folder(question, True, norm, grid[0])
    question.timed()
    if content.pilot.rate is not None:
        question.job("pilot", content.norms[0], content.pilot.rate, content.pilot.seed)


def _check_seeds(content: Content) -> None:
    """Raise ConfigError if two stages share a seed."""
    first, pilot, timing = content.tune.first_seed, content.pilot, content.timing
    seeds = [*range(content.final.max_seeds), *range(first, first + selection.TUNING_SEEDS)]
    seeds += [pilot.seed] * (pilot.rate is not None) + [timing.seed] * bool(timing.norms)
    if shared := [seed for seed in seeds if seeds.count(seed) > 1]:
        raise config.ConfigError(
            f"two stages share seed {shared[0]}, and each needs its own; final seeds count from 0; tune.first_seed, "
            "pilot.seed and timing.seed set the others"
        )
