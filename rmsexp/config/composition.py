"""Compose the config of a run from the words of a command line."""

from __future__ import annotations

import copy
import itertools
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rmsexp.config.classes import loaded
from rmsexp.config.schema import (
    ConfigError,
    as_config,
    check_missing,
    checked,
    expanded,
    fit,
    flatten,
    plain_values,
    several,
)
from rmsexp.system.checks import nearest, right_key
from rmsexp.system.command_line import value_word
from rmsexp.system.readers import check_own_config, check_yaml, read_yaml

# ${if_equal:a,b,x,y} in a config is x if a equals b, otherwise y; a is a reference such as ${model.variant}.
OmegaConf.register_new_resolver("if_equal", lambda a, b, x, y: x if a == b else y, replace=True)

OwnFiles = tuple[tuple[str, int, int], ...]

_HERE = Path(__file__).parents[1]
CONFIGS = _HERE / "configs" if (_HERE / "configs").is_dir() else _HERE.parent / "configs"
GROUPS = {
    "task": "the model and its data",
    "norm": "the normaliser",
    "scale": "how large model and data are",
    "recipe": "sizes and schedule of a task at a scale; chosen by task and scale",
    "pair": "settings that one norm needs on one task; chosen by task and norm",
    "logger": "a service that the metrics are also written to; for several: logger=[wandb,tensorboard]",
    "sweep": "a prepared set of runs",
}
# Other names of norms on a command line, in small letters and without hyphens and underscores.
ALIASES = {
    "layernorm": "ln",
    "rmsnorm": "rms",
    "prmsnorm": "prms",
    "batchnorm": "bn",
    "weightnorm": "wn",
    "l2norm": "l2",
    "nonorm": "none",
    "identity": "none",
    "meanonlybatchnorm": "mean_only_bn",
    "nonparametriclayernorm": "nonparametric_ln",
    "dynamictanh": "dyt",
    "dynamicerf": "derf",
}
PLUGINS = {  # of Hydra -> the extra that installs them
    "hydra/launcher": {
        "basic": "",
        "joblib": "joblib",
        **dict.fromkeys(("slurm", "submitit_slurm", "submitit_local"), "slurm"),
        "ray": "ray",
    },
    "hydra/sweeper": {"basic": "", "optuna": "optuna"},
}

LONGEST_WORD = 4000  # largest number of characters of a GROUP=CHOICE or KEY=VALUE; Hydra parses 10,000 in a second
DEEPEST_WORD = 20  # largest number of levels of brackets; Hydra fails at a few hundred


def is_for_sweeps(word: str) -> bool:
    """Return whether an override is about sweeps and not about a single run: sweep=…, and Hydra's own keys."""
    return word.lstrip("+~").startswith(("sweep=", "hydra.", "hydra/"))


def read(path: Path) -> tuple[Any, Any]:
    """Return the task's config and the norm of a recorded run from its ``config.yaml``.

    The run may be somebody else's, so its file is read as data: no module that it names is imported. Its norm and its
    task must be classes that are loaded already, as all norms of the package are
    (:func:`rmsexp.config.classes.loaded`).

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

    Raises: ConfigError for overrides that do not parse, for unknown groups, choices and keys, and if ``config_dir`` is
    no folder.
    """
    if config_dir is not None and not (config_dir and Path(config_dir).is_dir()):
        raise ConfigError(f"--config-dir {config_dir} is not a folder")
    parsed = parse(overrides)
    own_folders = {path.name for path in Path(config_dir).iterdir() if path.is_dir()} if config_dir else set[str]()
    for key in {override.key_or_group for override in parsed} & own_folders:
        if key not in GROUPS:  # Hydra takes each folder there for a group
            raise ConfigError(f"{key} cannot be set, since --config-dir {config_dir} has a folder of that name")
    if config_dir:
        _check_own_files(config_dir)
    _check_choices(parsed, config_dir)
    return (_with_hydra if hydra else _without_hydra)(tuple(overrides), config_dir)


def _check_own_files(config_dir: str) -> None:
    """Raise ConfigError for a file that would take Hydra long, or has the name of one of the package's.

    Of two files with the same name only one would be used.
    """
    in_groups = [own for group in {*_folders(), *GROUPS} for own in Path(config_dir, group).rglob("*.yaml")]
    for own in sorted([*Path(config_dir).glob("*.yaml"), *in_groups]):
        _check_own_file(str(own), own.stat().st_size, own.stat().st_mtime_ns)
        packaged = CONFIGS / own.relative_to(config_dir)
        if packaged.exists() and not packaged.samefile(own):
            raise ConfigError(f"{own} has the name of a file of rmsexp, and only one of them would be used; rename it")


@lru_cache(maxsize=1024)
def _check_own_file(path: str, size: int, time: int) -> None:  # noqa: ARG001
    """Raise ConfigError for a file that Hydra must not load. ``size`` and ``time`` show whether it has changed."""
    try:
        check_own_config(Path(path))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _without_hydra(overrides: tuple[str, ...], config_dir: str | None) -> DictConfig:
    """Return the composed config without Hydra's own part.

    Composing takes Hydra a tenth of a second. So the config of the chosen files is composed once for all configs that
    differ in values alone, and their values are set afterwards, in the order and in the way in which Hydra sets them.
    If a word is +KEY=… or ++KEY=…, Hydra composes all words.
    """
    state, parsed = state_of_own_files(config_dir), parse(overrides)
    values = list(filter(_sets_value, parsed))
    if any(override.type is not OverrideType.CHANGE for override in parsed):
        values = []
    choices = tuple(word for word, override in zip(overrides, parsed, strict=True) if override not in values)
    try:
        own = copy.deepcopy(_of_choices(choices, config_dir, state))
        for override in values:
            OmegaConf.update(own, override.key_or_group, override.value())
    except Exception:  # OmegaConf's and, for wrong values, Python's; composing all words gives the message
        own = copy.deepcopy(_of_choices(overrides, config_dir, state))
    return own


def _sets_value(override: Override) -> bool:
    """Return whether KEY=VALUE sets a value of the run, and does not choose a file of a config group."""
    key = override.key_or_group
    return (
        not override.is_sweep_override()
        and not override.is_hydra_override()
        and override.package is None
        and "/" not in key
        and key not in _folders()
    )


@cache
def _folders() -> frozenset[str]:
    """Return the names of the folders of configs, each of which is a group for Hydra."""
    return frozenset(path.name for path in CONFIGS.iterdir() if path.is_dir())


@lru_cache(maxsize=256)
def _of_choices(words: tuple[str, ...], config_dir: str | None, state: OwnFiles) -> DictConfig:
    """Return the config that Hydra composes, without Hydra's own part. It is kept, so callers must copy it.

    ``state``: see :func:`state_of_own_files`.
    """
    composed = _compose(words, config_dir, state)
    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    OmegaConf.set_struct(own, True)
    return own


def _with_hydra(overrides: tuple[str, ...], config_dir: str | None) -> DictConfig:
    """Return the composed config, including Hydra's own part."""
    return _compose(overrides, config_dir, state_of_own_files(config_dir))


def state_of_own_files(config_dir: str | None) -> OwnFiles:
    """Return place, size and time of the user's own config files, by which a change of one is noticed."""
    if config_dir is None:
        return ()
    paths = sorted(path for group in GROUPS for path in Path(config_dir, group).absolute().rglob("*.yaml"))
    return tuple((str(path), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in paths)


@lru_cache(maxsize=256)
def _compose(overrides: tuple[str, ...], config_dir: str | None, state: OwnFiles) -> DictConfig:  # noqa: ARG001
    """Return the composed config, including Hydra's own part. ``state``: see :func:`state_of_own_files`."""
    extra = [value_word("hydra.searchpath", [f"file://{Path(config_dir).absolute()}"])] if config_dir else []
    outer = GlobalHydra.instance().hydra  # in a sweep Hydra has already been initialised
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIGS), version_base=None):
            return hydra_compose("config", [*extra, *overrides], return_hydra_config=True)
    except YAMLError as error:
        raise ConfigError(" ".join(str(error).split())) from None
    except Exception as error:  # Hydra raises many types of exceptions for invalid values of its own keys
        failure = str(error).partition("\n")[0] or type(error).__name__
        if not isinstance(error, HydraException | OmegaConfBaseException):
            failure = f"Hydra fails at these words ({type(error).__name__}: {failure})"
        if missing := re.search(r"Could not find 'recipe/(\w+)/(\w+)'", failure):
            task, scale, scales = *missing.groups(), ", ".join(options(f"recipe/{missing[1]}", config_dir))
            known = f"its scales are {scales}" if scales else f"write recipe/{task}/{scale}.yaml beside its config"
            failure = f"task={task} has no scale={scale}{own_folder(f'recipe/{task}', scale, config_dir)} ({known})"
    finally:
        GlobalHydra.instance().hydra = outer
    parsed = parse(overrides)
    if missing := re.search(r"Could not find '(hydra/launcher|hydra/sweeper)/(\w+)'", failure):
        raise ConfigError(_about_plugin(*missing.groups()))
    _explain(parsed, config_dir)
    raise ConfigError(failure)


def from_words(schema: type, words: Sequence[str]) -> Any:
    """Return an instance of a dataclass from ``KEY=VALUE`` words. Raises: ConfigError."""
    content = as_config(plain_values(from_dotlist(words)))
    check_missing(content)
    return fit(schema, content, "")


def from_dotlist(words: Sequence[str]) -> DictConfig:
    """Return ``KEY=VALUE`` words, whose values are YAML, as a config. Raises: ConfigError."""
    try:
        for word in words:
            check_size(word)
            check_yaml(word.partition("=")[2], word)
        return OmegaConf.from_dotlist(list(words))
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(" ".join(str(error).split())) from None


def parse(overrides: Sequence[str]) -> list[Override]:
    """Return the overrides as Hydra parses them. Raises: ConfigError."""
    for word in overrides:
        check_size(word)
    return list(map(_parsed, overrides))


@lru_cache(maxsize=1024)
def _parsed(word: str) -> Override:
    try:
        return OverridesParser.create().parse_overrides([word])[0]
    except (HydraException, ValueError) as error:
        reason = " ".join(str(error).split("\nSee http")[0].split())
        reason = several(word) or reason
        raise ConfigError(f"{word!r} is no GROUP=CHOICE and no KEY=VALUE ({reason})") from None


def check_size(word: str) -> None:
    """Raise ConfigError for a word that would take Hydra and YAML long or exceed Python's limit of recursion."""
    bare = re.sub(r"'(\\.|[^'\\])*'|\"(\\.|[^\"\\])*\"", "", word)  # text in quotes has no brackets of its own
    depth = max(itertools.accumulate((char in "[({") - (char in "])}") for char in bare), default=0)
    if len(word) > LONGEST_WORD or depth > DEEPEST_WORD:
        limits = f"at most {LONGEST_WORD} characters and {DEEPEST_WORD} levels of brackets"
        raise ConfigError(f"{word} is too long ({limits})")


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
        hint = own_folder(group, name, config_dir) or nearest(name, known)
        raise ConfigError(f"{group} {name} is not known{hint} (one of {', '.join(sorted(known))})")
    return known[name]


def own_folder(group: str, name: str, config_dir: str | None) -> str:
    """Return "; add --config-dir DIR, …" for an unknown choice that a folder of own configs here has, or "".

    Such folders are looked for in the current folder, and beside ``config_dir``.
    """
    if not re.fullmatch(r"[\w.+-]+", name):
        return ""
    for parent in (Path(), *([Path(config_dir), Path(config_dir).parent] if config_dir else [])):
        with suppress(OSError):
            for folder in (parent, *sorted(path for path in parent.iterdir() if path.is_dir())):
                if os.access(folder / group / f"{name}.yaml", os.R_OK):
                    return f"; add --config-dir {folder}, which has {group}/{name}.yaml"
    return ""


def papers_scale(task: str) -> str:
    """Return "; the paper's setting is scale=paper" for a task of the paper, and "" for another task."""
    return "; the paper's setting is scale=paper" if "paper" in options(f"recipe/{task}") else ""


def norm_words(name: str) -> list[str]:
    """Return the overrides for a norm with options, such as norm=prms and norm.p=0.5 for prms+p=0.5.

    Options of the model and of the schedule keep their name, such as model.qk_norm=true in rms+model.qk_norm=true.
    """
    norm, *options = name.split("+")
    return [f"norm={norm}", *(word if word.startswith(("model.", "schedule.")) else f"norm.{word}" for word in options)]


def _files(group: str, config_dir: str | None) -> dict[str, Path]:
    folders = [CONFIGS / group, *([Path(config_dir) / group] if config_dir else [])]
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for folder in folders
        for path in folder.rglob("*.yaml")
    }


def choices(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that choose task, norm, scale and variant of the model."""
    keys = ("task", "norm", "scale", "model.variant")
    return [o.input_line for o in parse(overrides) if o.key_or_group in keys and o.input_line]


def _check_choices(parsed: Sequence[Override], config_dir: str | None) -> None:
    for override in parsed:
        group, value = override.key_or_group, override.value()
        if override.is_delete() and not group.startswith("hydra"):
            raise ConfigError(f"{override.input_line}: a value can be set, but not removed")
        required = group in ("task", "norm", "scale")  # exactly one choice
        if group not in GROUPS or (value is None and not required):
            continue
        if required and not isinstance(value, str):
            several = f"; for several -m {group}={','.join(map(str, value))}" if isinstance(value, list) else ""
            raise ConfigError(f"{group} takes one of {', '.join(options(group, config_dir))}{several}")
        for name in value if isinstance(value, list) else [value]:
            known = options(group, config_dir)
            if str(name) not in known:
                others = ALIASES if group == "norm" else ()
                hint = own_folder(group, str(name), config_dir)
                hint = hint or nearest(str(name), [*(f"{group}={choice}" for choice in known), *known, *others])
                own = "" if config_dir else "; your own: --config-dir DIR"
                raise ConfigError(f"{group}={name} is not known{hint} (one of {', '.join(known)}){own}")


def _explain(parsed: Sequence[Override], config_dir: str | None) -> None:
    """Raise a ConfigError about the first override whose key does not exist; return if there is none."""
    choices = [o.input_line for o in parsed if o.key_or_group in GROUPS and o.input_line]
    composed = _without_hydra(tuple(choices), config_dir) if len(choices) < len(parsed) else None
    if composed is None:
        return
    known = flatten(OmegaConf.to_container(composed))
    for override in parsed:
        key = override.key_or_group
        if (
            key in GROUPS
            or key.startswith(("hydra.", "hydra/"))
            or override.is_add()
            or key in known
            or _has(composed, key)
        ):
            continue
        if key.startswith("norm."):
            _explain_norm_option(key.removeprefix("norm."), composed.norm, config_dir)
        raise ConfigError(f"{key} is not known{right_key(key, [*known, *GROUPS])}")


def _about_plugin(group: str, name: str) -> str:
    """Return why a plugin of Hydra cannot be used: it is not known, or not installed."""
    known = PLUGINS[group]
    if name in known:
        return f"{group}={name} is not installed: pip install 'rmsexp[{known[name]}]'"
    return f"{group}={name} is not known{nearest(name, known)} (one of {', '.join(known)})"


def _explain_norm_option(option: str, norm: DictConfig, config_dir: str | None) -> None:
    owners = [name for name, path in sorted(_files("norm", config_dir).items()) if option in OmegaConf.load(path)]
    if owners:
        raise ConfigError(f"norm={norm.name} has no option norm.{option} (norms that have it: {', '.join(owners)})")
    known = [f"norm.{key!s}" for key in norm if key != "_target_"]
    raise ConfigError(
        f"norm.{option} is not known{nearest(f'norm.{option}', known)} (norm={norm.name} has {', '.join(known)})"
    )


def _has(composed: DictConfig, key: str) -> bool:
    missing = object()
    return OmegaConf.select(composed, key, default=missing) is not missing
