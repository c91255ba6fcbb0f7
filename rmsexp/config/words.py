"""The words of a command line: other names and spellings, and the runs of a sweep, in their order."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException
from omegaconf.errors import MissingMandatoryValue

from rmsexp.config import composition
from rmsexp.config.schema import ConfigError
from rmsexp.system.command_line import value_word

MOST_RUNS = 10_000  # of a sweep
NAMES_OF_NORMS = ("norm", "norms", "timing.norms", "timing.reference")  # keys whose values name norms
# keys of Hydra that would have no effect
WITHOUT_EFFECT = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.output_subdir", "hydra.mode")


def overrides(words: Sequence[str], config_dir: str | None = None) -> list[str]:
    """Return the overrides that words of a command line stand for: with home folders, and norms by their names.

    ``norm=layernorm`` is ``norm=ln``, unless ``config_dir`` has a norm of that name; ``norms=ln,rms`` is
    ``norms=[ln,rms]``; ``norm.class=…`` is ``norm.module=…``.

    Raises: ConfigError for a key of Hydra that has no effect here.
    """
    known = composition.options("norm", config_dir)
    for word in words:
        key = word.partition("=")[0].lstrip("+~")
        if key in WITHOUT_EFFECT:
            raise ConfigError(f"{word} has no effect: results=DIR sets the folder of results, and -m makes a sweep")
    words = [f"norm.module={word[11:]}" if word.startswith("norm.class=") else word for word in words]
    return [_with_names(composition.expand_home(word), known) for word in words]


def override(key: str, value: object) -> str:
    """Return the override that sets a key to a value of Python.

    This is None, or a number, truth value, text or path, or a list or dict of such values. Text is taken as it is, and
    never as a list, a number or a reference.

    Raises: ConfigError for a value of another type, and for a key that is none.
    """
    if not re.fullmatch(r"\+{0,2}[\w./@-]+", key):
        raise ConfigError(f"{key!r} is no key of the config")
    try:
        return value_word(key, value.item() if hasattr(value, "item") else value)  # NumPy's numbers have item
    except (TypeError, ValueError):
        raise ConfigError(f"{key}: a {type(value).__name__} cannot be a value of the config") from None


def _with_names(word: str, known: Sequence[str]) -> str:
    """Return an override with the names of norms in the place of other names."""

    def name(match: re.Match[str]) -> str:
        return match[0] if match[0] in known else (composition.ALIASES | plain).get(_plain(match[0]), match[0])

    plain = {_plain(norm): norm for norm in known}
    key, sign, value = word.partition("=")
    if key == "norms" and value[:1].isalpha():
        value = f"[{value}]"
    return key + sign + (re.sub(r"[A-Za-z][\w-]*", name, value) if key in NAMES_OF_NORMS else value)


def _plain(name: str) -> str:
    return re.sub("[-_]", "", name.lower())


class Sweep(NamedTuple):
    """The runs of a command line: the overrides of each, and the words for Hydra.

    ``words``: None if it is a single run. ``searches``: whether Hydra's sweeper chooses the values itself, as Optuna's
    does; the only run is then one with the first value of each key. ``launcher``: the options of Hydra's launcher.
    """

    runs: list[list[str]]
    words: list[str] | None
    searches: bool
    launcher: Mapping[str, Any]


def expand(overrides: Sequence[str], multirun: bool, config_dir: str | None) -> Sweep:
    """Return the runs of a command line, which is a sweep with ``-m`` (``multirun``) or a choice sweep=….

    Raises: ConfigError for a mistake in the overrides, or if a key has several values without a sweep.
    """
    parsed = composition.parse(overrides)
    of_hydra = [word for word in overrides if composition.is_for_sweeps(word)]
    hydra = composition.compose(of_hydra, config_dir, hydra=True).hydra
    try:
        mode, chdir, params = str(hydra.mode), hydra.job.chdir, dict(hydra.sweeper.params or {})
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key} has no value (??? stands for a missing one)") from None
    multirun = multirun or mode == "RunMode.MULTIRUN"
    searches = multirun and not str(hydra.sweeper.get("_target_")).endswith("BasicSweeper")
    swept = [override for override in parsed if override.is_sweep_override()]
    if swept and not multirun:
        first = [_choices(override, config_dir)[0] for override in parsed]
        composition.compose(first, config_dir)  # so that an unknown key is named rather than its several values
        raise ConfigError(f"{swept[0].input_line} names several runs: add -m for a sweep")
    if chdir:
        raise ConfigError("hydra.job.chdir=true would change the folder that relative paths start from")
    preset = [f"{key}={value}" for key, value in params.items()] if multirun else []
    # the seed varies slowest, and norms and their options fastest: runs that differ in the norm follow each other
    ordered = sorted([*preset, *overrides], key=lambda word: word.startswith("norm") - word.startswith("seed="))
    # the last override of a key wins
    axes = {
        override.get_key_element(): _choices(override, config_dir, searches) for override in composition.parse(ordered)
    }
    count = 1 if searches else math.prod(len(choices) for choices in axes.values())
    if count > MOST_RUNS:
        raise ConfigError(f"these are {count} runs; a sweep has at most {MOST_RUNS}")
    points = [[choices[0] for choices in axes.values()]] if searches else itertools.product(*axes.values())
    runs = [[word for word in point if not composition.is_for_sweeps(word)] for point in points]
    of_sweep = list(overrides) if searches else [*map(_for_hydra, ordered), "hydra.sweeper.params=null"]
    return Sweep(runs, of_sweep if multirun else None, searches, hydra.launcher)


def _for_hydra(word: str) -> str:
    """Return a word as a choice of one value, unless it has several or null, is about sweeps, or names the results.

    Hydra first composes a config of the words that have one value, with the default task and norm, which may lack the
    key of the word. What it then does with a choice of one value is the same.
    """
    (override,) = composition.parse([word])
    kept = override.is_sweep_override() or override.value() is None  # null cannot be a choice
    if kept or composition.is_for_sweeps(word) or word.startswith(("~", "results=")):
        return word
    return f"{override.get_key_element()}=choice({override.get_value_element_as_str()})"


def _choices(override: Override, config_dir: str | None, searches: bool = False) -> list[str]:
    """Return one override per value of an override: norm=ln and norm=rms for norm=ln,rms.

    ``searches``: see :class:`Sweep`; an interval then has its first value.

    Raises: ConfigError if there are no values or too many, and if they cannot be listed, as those of an interval.
    """
    word, key, values = override.input_line, override.get_key_element(), override.value()
    if not override.is_sweep_override():
        return [word or ""]
    if isinstance(values, IntervalSweep) and searches:
        return [f"{key}={values.start}"]
    if isinstance(values, Glob):
        choices = [f"{key}={name}" for name in values.filter(composition.options(override.key_or_group, config_dir))]
    else:
        # the length of a range is compared before Hydra lists its values, which for 10^9 takes minutes
        length = abs((values.stop or 0) - (values.start or 0)) if isinstance(values, RangeSweep) else 0
        if isinstance(values, RangeSweep) and length > MOST_RUNS * abs(values.step) > 0:
            raise ConfigError(f"{word} has too many values; a sweep has at most {MOST_RUNS} runs")
        try:
            choices = [f"{key}={value}" for value in override.sweep_string_iterator()]
        except (HydraException, ValueError):
            raise ConfigError(f"{word}: write the values with commas between them") from None
    if not choices:
        raise ConfigError(f"{word} has no values")
    return choices
