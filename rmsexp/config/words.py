"""From the words of a command line to a config: other names and spellings, the runs of a sweep, and composition."""

import itertools
import math
import pickle
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from rmsexp.config.classes import loaded
from rmsexp.config.schema import ConfigError, as_config, check_missing, checked, expanded, fit, flatten, plain_values
from rmsexp.system.checks import nearest, right_key
from rmsexp.system.command_line import value_word
from rmsexp.system.readers import checked_yaml, read_yaml

# ${if_equal:a,b,x,y} in a config is x if a equals b, otherwise y; a is a reference such as ${model.variant}.
OmegaConf.register_new_resolver("if_equal", lambda a, b, x, y: x if a == b else y, replace=True)

_HERE = Path(__file__).parents[1]
CONFIGS = _HERE / "configs" if (_HERE / "configs").is_dir() else _HERE.parent / "configs"
GROUPS = ("task", "norm", "scale", "recipe", "task_norm", "logger", "sweep")
EXTRAS = "those of joblib, optuna, ray and slurm need an extra of this package, as in pip install 'rmsexp[joblib]'"
MOST_RUNS = 10_000  # of a sweep
SEVERAL = "{} names several values, and a run has one; python -m rmsexp -m … does a run for each"
NAMES_OF_NORMS = ("norm", "norms", "timing.norms", "timing.reference")  # keys whose values name norms
# keys of Hydra that would have no effect
WITHOUT_EFFECT = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.output_subdir", "hydra.mode")


# --- names and spellings


def overrides(words: Sequence[str], config_dir: str | None = None) -> list[str]:
    """Return the overrides that words of a command line stand for: with home folders, and norms by their names.

    ``norm=layernorm`` is ``norm=ln``, unless ``config_dir`` has a norm of that name; ``norm=prms+p=0.5`` is
    ``norm=prms norm.p=0.5``; ``norms=ln,rms`` is ``norms=[ln,rms]``; ``norm.class=…`` (``module+class=…``) is
    ``norm.module=…``.

    Raises: ConfigError for a key of Hydra that has no effect here, and for several norms with options.
    """
    known = options("norm", config_dir)
    for word in words:
        key = word.partition("=")[0].lstrip("+~")
        if key in WITHOUT_EFFECT:
            raise ConfigError(f"{word} has no effect: results=DIR sets the folder of results, and -m makes a sweep")
        several = [part.partition("+")[0] for part in word.split(",")[1:] if key == "norm"]
        if "+" in word and not {*known, *aliases()}.isdisjoint(several):
            own = next(part.removeprefix("norm=") for part in word.split(",") if "+" in part)
            raise ConfigError(f"{word}: norms in a sweep cannot have options; run norm={own} by itself")
    words = [re.sub(r"(^norm\.|\bmodule\+)class=", r"\1module=", word) for word in words]
    words = ["logger=[]" if word == "logger=null" else word for word in words]
    parts = (norm_words(word[5:]) if re.match(r"norm=[\w-]+\+", word) else [word] for word in words)
    return [_with_names(expand_home(word), known) for word in itertools.chain.from_iterable(parts)]


def override(key: str, value: object) -> str:
    """Return the override that sets a key to a value of Python.

    The value is None, a number, truth value, text or path, or a list or dict of such values. Text is taken as it is,
    and never as a list, a number or a reference.

    Raises: ConfigError for a value of another type, and for a key that is none.
    """
    if not re.fullmatch(r"\+{0,2}[\w./@-]+", key):
        raise ConfigError(f"{key!r} is no key of the config")
    try:
        return value_word(key, value.item() if hasattr(value, "item") else value)  # NumPy's numbers have item
    except (TypeError, ValueError):
        raise ConfigError(f"{key}: a {type(value).__name__} cannot be a value of the config") from None


def _with_names(word: str, known: Sequence[str]) -> str:
    """Return an override with the names of norms, ``known``, in the place of their aliases and other spellings."""

    def name(match: re.Match[str]) -> str:
        return match[0] if match[0] in known else (aliases() | plain).get(_plain(match[0]), match[0])

    plain = {_plain(norm): norm for norm in known}
    key, sign, value = word.partition("=")
    if key == "norms" and value[:1].isalpha():
        value = f"[{value}]"
    return key + sign + (re.sub(r"(?<![\w.+=-])[A-Za-z][\w-]*", name, value) if key in NAMES_OF_NORMS else value)


@cache
def about_norms() -> dict[str, dict[str, Any]]:
    """Return what the configs of the package's norms say under ``about``, by norm, in the order of tables and figures.

    ``order``: the place in that order. ``label``: the name for people. ``aliases``: other names on a command line, in
    small letters, without hyphens and underscores. ``look``: fields of :class:`rmsexp.report.plots.style.Look`.
    ``untuned``: an option that campaigns leave at its default. The configs of runs lack ``about``.
    """
    found: dict[str, Any] = {path.stem: OmegaConf.load(path) for path in (CONFIGS / "norm").glob("*.yaml")}
    listed = {norm: dict(content.about) for norm, content in found.items() if "about" in content}
    return dict(sorted(listed.items(), key=lambda item: int(item[1]["order"])))


@cache
def aliases() -> dict[str, str]:
    return {alias: norm for norm, about in about_norms().items() for alias in about["aliases"]}


def _plain(name: str) -> str:
    return re.sub("[-_]", "", name.lower())


# --- composition


def is_for_sweeps(word: str) -> bool:
    """Return whether an override is about sweeps and not about a single run: sweep=…, and Hydra's own keys."""
    return word.lstrip("+~").startswith(("sweep=", "hydra.", "hydra/"))


def read(path: Path) -> tuple[Any, Any]:
    """Return the task's config and the norm of a recorded run from its ``config.yaml``.

    The run may be somebody else's, so its file is read as data, and of the modules that it names only those of the
    package are imported. A norm or task of the user's own must be loaded already (:func:`.classes.loaded`).

    Raises: ConfigError if the file cannot be opened; ValueError, with the file's name, if its content is not valid.
    """
    try:
        return checked(read_yaml(path), loaded)[:2]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): name the folder of a run") from None
    except ConfigError as error:
        raise ValueError(f"{path}: {error}") from None


def compose(overrides: Sequence[str], config_dir: str | None = None, *, hydra: bool = False) -> DictConfig:
    """Return the composed config; with ``hydra``, including Hydra's own part.

    Hydra takes a tenth of a second to compose files. So it composes them once for all configs that differ in values
    alone, and the values are set afterwards, in their order and as Hydra sets them.

    Raises: ConfigError for overrides that do not parse, for unknown groups, choices and keys, and if ``config_dir`` is
    no folder.
    """
    if config_dir is not None and not (config_dir and Path(config_dir).is_dir()):
        raise ConfigError(f"--config-dir {config_dir} is not a folder")
    own_folders = {path.name for path in Path(config_dir).iterdir() if path.is_dir()} if config_dir else set[str]()
    values, of_files = list[Override](), list[str]()
    for word, override in zip(overrides, parse(overrides), strict=True):
        key = override.key_or_group
        if key in own_folders and key not in GROUPS:  # Hydra takes each folder there for a group
            raise ConfigError(f"{key} cannot be set, since --config-dir {config_dir} has a folder of that name")
        _check_choice(override, config_dir)
        if key in GROUPS or "/" in key or override.package is not None or override.is_hydra_override():
            of_files.append(word)
        else:
            values.append(override)
    composed: DictConfig = pickle.loads(_compose(tuple(of_files), config_dir, own_files(config_dir), hydra))
    for override in values:
        _set(composed, override)
    return composed


def _set(composed: DictConfig, override: Override) -> None:
    """Set a value; + and ++ add one that the config lacks. Raises: ConfigError if it cannot be set."""
    key, word, value = override.key_or_group, override.input_line, override.value()
    if override.is_sweep_override():
        raise ConfigError(SEVERAL.format(word))
    try:
        if override.is_add() and not isinstance(value, dict | list) and OmegaConf.select(composed, key) is not None:
            raise ConfigError(f"{word}: {key} exists; change it by {key}=…")
        OmegaConf.update(composed, key, value, force_add=override.is_add() or override.is_force_add())
    except (ConfigAttributeError, ConfigKeyError) as error:
        key = error.full_key or key  # foo in optim={foo: 1}
        known = [name for name in flatten(OmegaConf.to_container(composed)) if not name.startswith("hydra.")]
        hint = right_key(key, [*known, *GROUPS]) or "; python -m rmsexp --help lists the keys that every task has"
        raise ConfigError(f"{key} is not known{hint}") from None
    except (OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(" ".join(f"{word}: {error}".split())) from None


def own_files(config_dir: str | None) -> tuple[tuple[Path, int, int], ...]:
    """Return path, size and time of change of each of the user's own config files, to notice a change."""
    if config_dir is None:
        return ()
    folder, groups = Path(config_dir).absolute(), [path.name for path in CONFIGS.iterdir() if path.is_dir()]
    paths = sorted([*folder.glob("*.yaml"), *(own for group in groups for own in (folder / group).rglob("*.yaml"))])
    return tuple((path, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in paths)


@lru_cache(maxsize=1024)
def _compose(
    words: tuple[str, ...], config_dir: str | None, own: tuple[tuple[Path, int, int], ...], hydra: bool
) -> bytes:
    """Return the config that Hydra composes, pickled, which is copied faster. ``own``: :func:`own_files`.

    Raises: ConfigError if it cannot be composed, and for a file in ``config_dir`` that Hydra must not load, or that has
    the name of one of the package's, since only one of them would be used.
    """
    for path, *_ in own:
        try:
            checked_yaml(path)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        packaged = CONFIGS / path.relative_to(Path(config_dir or "").absolute())
        if packaged.exists() and not packaged.samefile(path):
            raise ConfigError(f"{path} has the name of a file of rmsexp, and only one of them would be used; rename it")
    extra = [value_word("hydra.searchpath", [f"file://{Path(config_dir).absolute()}"])] if config_dir else []
    outer = GlobalHydra.instance().hydra  # in a sweep Hydra has already been initialised
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIGS), version_base=None):
            composed = hydra_compose("config", [*extra, *words], return_hydra_config=True)
    except YAMLError as error:
        raise ConfigError(" ".join(str(error).split())) from None
    except Exception as error:  # Hydra raises many types of exceptions for invalid values of its own keys
        raise ConfigError(_failure(error, config_dir)) from None
    finally:
        GlobalHydra.instance().hydra = outer
    if not hydra:
        composed = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
        OmegaConf.set_struct(composed, True)
    return pickle.dumps(composed)


def _failure(error: Exception, config_dir: str | None) -> str:
    """Return the message about an error with which Hydra ends. If a file is missing, it names those that exist."""
    if recipe := re.search(r"Could not find 'recipe/([^'/]+)/([^']+)'", str(error)):
        task, scale = recipe[1], recipe[2]
        scales = ", ".join(options(f"recipe/{task}", config_dir))
        return f"task={task} has no scale={scale} ({f'one of {scales}' if scales else f'recipe/{task}/{scale}.yaml'})"
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return f"Hydra fails at these words ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
    if "Could not find" not in str(error):
        return str(error).partition("\n")[0]
    line = " ".join(str(error).partition("Config search path")[0].split()).replace(" Available", "; available")
    return line + f"; {EXTRAS}" * ("'hydra/" in line)


def from_words(schema: type, words: Sequence[str]) -> Any:
    """Return an instance of a dataclass from ``KEY=VALUE`` words. Raises: ConfigError."""
    content = as_config(plain_values(from_dotlist(words)))
    check_missing(content)
    return fit(schema, content, "")


def from_dotlist(words: Sequence[str]) -> DictConfig:
    """Return ``KEY=VALUE`` words, whose values are YAML, as a config. Raises: ConfigError."""
    try:
        return OmegaConf.from_dotlist(list(words))
    except (OmegaConfBaseException, YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(" ".join(f"{' '.join(words)}: {error}".split())) from None


def parse(overrides: Sequence[str]) -> list[Override]:
    """Return the overrides as Hydra parses them. Raises: ConfigError."""
    return list(map(_parsed, overrides))


@lru_cache(maxsize=1024)
def _parsed(word: str) -> Override:
    try:
        return OverridesParser.create().parse_overrides([word])[0]
    except (HydraException, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split("\nSee http")[0].split())
        key, sign, value = word.partition("=")
        quoted = f"; if the value is a text, write \"{key}='{value}'\"" * bool(sign and value[:1] not in {*"'\"[{", ""})
        raise ConfigError(f"{word!r} is no GROUP=CHOICE and no KEY=VALUE ({reason}){quoted}") from None


def expand_home(word: str) -> str:
    """Replace ``~`` in ``key=~/…`` by the home folder: shells do not expand it there, and Hydra refuses it."""
    key, is_value, value = word.partition("=")
    if not is_value or not value.startswith("~"):
        return word
    # a comma: perhaps a sweep; ${: perhaps a reference
    return f"{key}={expanded(value)}" if re.search(r",|\$\{", value) else value_word(key, expanded(value))


def options(group: str, config_dir: str | None = None) -> list[str]:
    """Return the choices of a config group, sorted: the names of its files in the package and in ``config_dir``."""
    return sorted(_files(group, config_dir))


def file(group: str, name: str, config_dir: str | None = None) -> Path:
    """Return the file of a choice of a config group. Raises: ConfigError if there is no such choice."""
    known = _files(group, config_dir)
    if name not in known:
        raise ConfigError(unknown(group, name, sorted(known), config_dir))
    return known[name]


def unknown(group: str, name: str, known: Sequence[str], config_dir: str | None) -> str:
    """Return the message about a choice of a config group that is none of the known ones."""
    hint = nearest(name, [*known, *(aliases() if group == "norm" else ())])
    own = "" if config_dir else "; your own: --config-dir DIR"
    return f"{group}{'=' if group in GROUPS else ' '}{name} is not known{hint}{own} (one of {', '.join(known)})"


def papers_scale(task: str) -> str:
    """Return "; the paper's setting is scale=paper" for a task of the paper, and "" for another task."""
    return "; the paper's setting is scale=paper" if "paper" in options(f"recipe/{task}") else ""


def parts(name: str) -> list[str]:
    """Return the parts of the name of a series or setting, such as ["rms", "eps=1e+3"] for "rms+eps=1e+3"."""
    return re.split(r"(?<![0-9.][eE])\+|\+(?![0-9])", name)  # the + of an exponent separates nothing


def norm_words(name: str) -> list[str]:
    """Return the overrides for a norm with options, such as norm=prms and norm.p=0.5 for prms+p=0.5.

    Options of model and schedule, and the optimiser, keep their name, as model.qk_norm in rms+model.qk_norm=true.
    """
    norm, *options = parts(name)
    others = "model.", "schedule.", "optim.name=", "optim.decay_gains="
    options = [re.sub("^class=", "module=", word) for word in options]
    return [f"norm={norm}", *(word if word.startswith(others) else f"norm.{word}" for word in options)]


def _files(group: str, config_dir: str | None) -> dict[str, Path]:
    folders = [CONFIGS / group, *([Path(config_dir) / group] if config_dir else [])]
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for folder in folders
        for path in folder.rglob("*.yaml")
    }


def _check_choice(override: Override, config_dir: str | None) -> None:
    """Raise ConfigError for a choice of a config group that does not exist, and for a key that is removed."""
    group, value = override.key_or_group, override.value()
    if override.is_delete() and not group.startswith("hydra"):
        raise ConfigError(f"{override.input_line}: a value can be set, but not removed")
    if group not in GROUPS:
        return
    if override.is_sweep_override():
        raise ConfigError(SEVERAL.format(override.input_line))
    if group in ("task", "norm", "scale") and not isinstance(value, str):  # exactly one choice
        raise ConfigError(f"{group} takes one of {', '.join(options(group, config_dir))}")
    for name in value if isinstance(value, list) else [] if value is None else [value]:
        file(group, str(name), config_dir)


# --- sweeps


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
    parsed = parse(overrides)
    of_hydra = [word for word in overrides if is_for_sweeps(word)]
    hydra = compose(of_hydra, config_dir, hydra=True).hydra
    multirun = multirun or str(hydra.mode) == "RunMode.MULTIRUN"
    searches = multirun and not str(hydra.sweeper.get("_target_")).endswith("BasicSweeper")
    swept = [override for override in parsed if override.is_sweep_override()]
    if swept and not multirun:
        raise ConfigError(f"{swept[0].input_line} names several runs: add -m for a sweep")
    if not multirun and (lost := [word for word in of_hydra if re.match(r"[+~]*hydra[./](launcher|sweeper)", word)]):
        raise ConfigError(f"{lost[0]} has an effect in sweeps only: add -m")
    if hydra.job.chdir:
        raise ConfigError("hydra.job.chdir=true would change the folder that relative paths start from; leave it out")
    preset = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()] if multirun else []
    # the seed varies slowest, and norms and their options fastest: runs that differ in the norm follow each other
    ordered = sorted([*preset, *overrides], key=lambda word: word.startswith("norm") - word.startswith("seed="))
    # the last override of a key wins
    axes = {override.get_key_element(): _choices(override, config_dir, searches) for override in parse(ordered)}
    count = 1 if searches else math.prod(len(choices) for choices in axes.values())
    if count > MOST_RUNS:
        raise ConfigError(f"a sweep cannot have more than {MOST_RUNS:,} runs")
    points = [[choices[0] for choices in axes.values()]] if searches else itertools.product(*axes.values())
    runs = [[word for word in point if not is_for_sweeps(word)] for point in points]
    of_sweep = list(overrides) if searches else [*map(_for_hydra, ordered), "hydra.sweeper.params=null"]
    return Sweep(runs, of_sweep if multirun else None, searches, hydra.launcher)


def _for_hydra(word: str) -> str:
    """Return p=0.5 as p=choice(0.5). Words with several values or null, of paths, ~key and those of sweeps stay.

    Hydra first composes a config of the words that have one value, with the default task and norm, which may lack the
    key of the word. What it then does with a choice of one value is the same.
    """
    (override,) = parse([word])
    kept = override.is_sweep_override() or override.value() is None  # null cannot be a choice
    if kept or is_for_sweeps(word) or word.startswith(("~", "results=", "data.root=")):
        return word
    return f"{override.get_key_element()}=choice({override.get_value_element_as_str()})"


def _choices(override: Override, config_dir: str | None, searches: bool = False) -> list[str]:
    """Return one override per value of an override: norm=ln and norm=rms for norm=ln,rms.

    ``searches``: see :class:`Sweep`; an interval then has its first value.

    Raises: ConfigError if there are no values, and if they cannot be listed, as those of an interval.
    """
    word, key, values = override.input_line, override.get_key_element(), override.value()
    if not override.is_sweep_override():
        return [word or ""]
    if isinstance(values, IntervalSweep) and searches:
        return [f"{key}={values.start}"]
    if isinstance(values, Glob):
        choices = [f"{key}={name}" for name in values.filter(options(override.key_or_group, config_dir))]
    else:
        try:  # of a range of 10^9 values only the first are listed
            choices = [f"{key}={value}" for value in itertools.islice(override.sweep_string_iterator(), MOST_RUNS + 1)]
        except (HydraException, ValueError):
            raise ConfigError(f"{word}: these values cannot be listed; write them with commas between them") from None
    if not choices:
        raise ConfigError(f"{word} has no values")
    return choices
