"""The file of a campaign: its keys, the checks of their values, and how it is read with the words of a command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rmsexp import config
from rmsexp.campaign.campaign_file import RULES, TUNING
from rmsexp.config.schema import as_config, fit
from rmsexp.config.timing import ProcessOptions
from rmsexp.rules import seeds
from rmsexp.rules.claims import EQUIVALENCE, Claim
from rmsexp.system import checks
from rmsexp.system.typed import typed


@dataclass
class Pilot:
    """A first run of each norm, at one rate, which shows whether the norm trains. ``rate`` None: there is no pilot."""

    rate: float | None = None


@dataclass
class Tune:
    """How learning rates are chosen.

    ``over``: the tuned key with its rates, ascending and an octave apart; by default those from half the recipe's rate
    to twice it. With a single rate, all norms have this rate, and nothing is tuned. ``by``: the metric by which rates
    are chosen, such as "valid error"; by default the task's. ``runs``: options of the tuning runs alone, such as fewer
    steps.
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
    ranges of rates, within which the score is at most this much worse than at the best rate
    (:mod:`rmsexp.rules.measures`); then ``tune.over`` has all rates, and there are ``min_seeds`` seeds.
    """

    min_seeds: int = 8
    max_seeds: int = 16
    score: str | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        checks.at_least("final.min_seeds", self.min_seeds, 2)
        checks.at_least("final.max_seeds", self.max_seeds, self.min_seeds, seeds.MOST)
        if self.tolerance is not None:
            checks.positive("final.tolerance", self.tolerance)


@dataclass
class Timing(ProcessOptions):
    """Interleaved timing of training steps, after the runs. ``norms``: those that are timed; by default none.

    The other keys are those of :class:`ProcessOptions`.
    """

    norms: list[str] = field(default_factory=list)


@dataclass
class Content:
    """The keys of a campaign's file, except ``claims``.

    ``runs``: overrides of all runs. ``norms``: the norms, with options as in prms+p=0.5. ``margin``: of the claims that
    are made if the file has none: each norm equals the first. ``supersedes``: the name of an earlier campaign whose
    verdicts this one replaces, once it is decided. ``ladder``: keys of the runs with their values, such as
    ``{schedule.steps: [500, 1000, 2000], schedule.warmup: [50, 100, 200]}``; then claims are about the slope of the
    score over the first key (:mod:`rmsexp.rules.measures`). ``rules``: the version of the rules by which it was begun.
    """

    question: str = ""
    runs: dict[str, Any] = field(default_factory=dict)
    norms: list[str] = field(default_factory=list)
    margin: float | None = None
    supersedes: str | None = None
    ladder: dict[str, list[float]] = field(default_factory=dict)
    pilot: Pilot = field(default_factory=Pilot)
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
        sizes = next(iter(self.ladder.values()))
        if len(sizes) < 2 or sorted({*sizes}) != sizes or sizes[0] <= 0:
            raise ValueError(
                f"ladder: the values of {next(iter(self.ladder))} must be at least two, ascending, above 0"
            )
        if uneven := [key for key, values in self.ladder.items() if len(values) != len(sizes)]:
            raise ValueError(f"ladder.{uneven[0]} needs {len(sizes)} values, one for each of {next(iter(self.ladder))}")
        if self.final.tolerance is not None:
            raise ValueError("claims are about slopes or about stable ranges: leave out ladder or final.tolerance")


# Keys of the campaign itself, not of its runs, which may be typed.
KEYS = ("claims", *(key.name for key in fields(Content) if key.name not in ("runs", "rules")))


def read(stored: dict[str, Any], words: Sequence[str]) -> tuple[Content, tuple[Claim, ...], list[str]]:
    """Return the content of a file with the changes in ``words``, its claims, and the other words, which are of runs.

    Raises: ConfigError or ValueError for a mistake in the file or in the words.
    """
    own = [word for word in words if re.split(r"[.=]", word, maxsplit=1)[0] in KEYS]
    if any(word.startswith("claims") for word in own):
        raise config.ConfigError("claims can be changed in its file only")
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
    """Return the claims of a file; if it has none, that each norm equals the first."""
    if stored and content.margin is not None:
        raise config.ConfigError("margin= has no effect, because the file has claims with margins of their own")
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
    if idle := [norm for norm in content.norms if norm not in claimed]:
        raise config.ConfigError(f"norms: no claim is about {', '.join(idle)}; leave it out, or add a claim about it")
    least = content.final.min_seeds
    if more := [claim.claim for claim in claims if (claim.seeds or 0) > least]:
        raise config.ConfigError(f"seeds of the claim {more[0]!r} are more than final.min_seeds, {least}: raise that")
    return claims
