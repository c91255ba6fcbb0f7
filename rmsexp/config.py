"""Compose and check configs, and name the folder of a run. Torch is imported only when a task's schema is needed."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.singleton import Singleton
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from rmsexp.checks import at_least, choice, nearest, not_empty
from rmsexp.command_line import LONGEST_MESSAGE, ReportedError
from rmsexp.readers import read_yaml

_HERE = Path(__file__).parent
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
# Keys that are not part of a run's identity: changing one adds no +key=value to the name of the run's folder, and does
# not prevent the run from continuing. They do not change what is trained, or the folder's path contains them anyway.
NOT_IDENTITY = {
    *("task", "scale", "seed", "results", "data.root", "device", "threads", "force", "max_steps"),
    *("log_every", "eval_every", "checkpoint_every"),
    "norm_eps",  # norm.eps, which takes its value from here, is part of the identity
}

LONGEST_SUFFIX = 200  # largest number of bytes for the changed keys in the name of a setting or series


class ConfigError(ReportedError, ValueError):
    """A mistake in a config or on the command line; the message names the mistake and, where possible, valid values."""

    exit_status = 2
    longest = LONGEST_MESSAGE


@dataclass
class DataConfig:
    """The key below ``data`` that every task has. ``root``: folder of all data sets and of what is made from them."""

    root: str = "~/.cache/rmsexp"

    def __post_init__(self) -> None:
        not_empty("data.root", self.root)

    @property
    def root_folder(self) -> Path:
        return expanded(self.root)


@dataclass
class RunConfig:
    """The keys of every task's config; a task's ``Config`` adds its own. ``*_every``: intervals in steps.

    ``norm_eps``: the eps of each norm whose config file refers to it (``eps: ${norm_eps}``).

    Raises: ValueError for invalid values.
    """

    task: str = MISSING
    scale: str = MISSING
    norm: Any = MISSING
    seed: int = MISSING
    max_steps: int = MISSING
    device: str = MISSING
    threads: int | None = None
    precision: str = MISSING
    norm_eps: float = 1e-5
    deterministic: bool = MISSING
    compile: bool = MISSING
    results: str = MISSING
    force: bool = MISSING
    log_every: int = MISSING
    eval_every: int = MISSING
    checkpoint_every: int = MISSING
    data: DataConfig = field(default_factory=DataConfig)
    logger: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        choice("precision", self.precision, ("float32", "bfloat16"))
        choice("device", self.device, ("auto", "cpu", "cuda"))
        for key in ("log_every", "eval_every", "checkpoint_every", "max_steps"):
            at_least(key, getattr(self, key), 1)
        at_least("seed", self.seed, 0)
        not_empty("results", self.results)
        if self.threads is not None:
            at_least("threads", self.threads, 1)


@dataclass(frozen=True)
class Job:
    """A run to be done: its checked config, its norm, and the folder of its record.

    ``setting``: the scale and the keys, except those of the norm, that were changed, as in demo+batch_size=8.
    ``series``: the norm and its options that were changed, as in prms+p=0.5. ``resolved``: the config as nested dicts
    of plain values, for the record.
    """

    overrides: tuple[str, ...]
    config: Any  # the task's Config
    norm: Any  # rmsexp.norms.Norm
    resolved: dict[str, Any]
    setting: str
    series: str

    @property
    def folder(self) -> Path:
        return self.setting_folder / self.series / f"seed{self.config.seed}"

    @property
    def setting_folder(self) -> Path:
        return expanded(self.config.results) / self.config.task / self.setting


def job(overrides: Sequence[str], config_dir: str | None = None) -> Job:
    """Return the job of one run's overrides, with its config composed and checked.

    Raises: ConfigError for a mistake in the overrides or in a config file.
    """
    resolved = _plain(compose(overrides, config_dir))
    config, norm = _typed(resolved, norm_class)
    base = _plain(compose(_choices(overrides), config_dir))
    changed = differences(resolved, base)
    if "norm.name" in changed:
        raise ConfigError("norm.name cannot be set; choose another norm with norm=…")
    norm_changes = {key.removeprefix("norm."): value for key, value in changed.items() if key.startswith("norm.")}
    setting_changes = {key: value for key, value in changed.items() if not key.startswith("norm.")}
    setting, series = resolved["scale"] + _suffix(setting_changes), resolved["norm"]["name"] + _suffix(norm_changes)
    return Job(tuple(overrides), config, norm, resolved, setting, series)


def read(path: Path) -> tuple[Any, Any]:
    """Return the task's config and the norm of a recorded run from its ``config.yaml``.

    The run may be somebody else's, so its file is read as data: no module that it names is imported. Its norm must be
    a class that is loaded already, which all norms of the package are (see :func:`loaded_norm_class`).

    Raises: ConfigError if the file cannot be opened; ValueError, with the file's name, if its content is not valid.
    """
    try:
        return _typed(read_yaml(path), loaded_norm_class)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): name the folder of a run") from None
    except ConfigError as error:
        raise ValueError(f"{path}: {error}") from None


def compose(overrides: Sequence[str], config_dir: str | None = None, *, hydra: bool = False) -> DictConfig:
    """Return the composed config; with ``hydra``, including Hydra's own part.

    Raises: ConfigError for overrides that do not parse, for unknown groups, choices and keys, and if ``config_dir`` is
    no folder.
    """
    if config_dir and not Path(config_dir).is_dir():
        raise ConfigError(f"--config-dir {config_dir} is not a folder")
    parsed = parse(overrides)
    for key in {override.key_or_group for override in parsed} - set(GROUPS):
        if config_dir and Path(config_dir, key).is_dir():  # Hydra takes each folder there for a group
            raise ConfigError(f"{key} cannot be set, since --config-dir {config_dir} has a folder of that name")
    _check_choices(parsed, config_dir)
    return _compose(tuple(overrides), config_dir, hydra)


@lru_cache(maxsize=256)
def _compose(overrides: tuple[str, ...], config_dir: str | None, hydra: bool) -> DictConfig:
    outside = str(Path(config_dir or "").absolute()).replace("'", r"\'")
    extra = [f"hydra.searchpath=['file://{outside}']"] if config_dir else []
    outer = Singleton.get_state()  # in a sweep Hydra has already been initialised
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIGS), version_base=None):
            return hydra_compose("config", [*extra, *overrides], return_hydra_config=hydra)
    except YAMLError as error:
        raise ConfigError(" ".join(str(error).split())) from None
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        failure = str(error).splitlines()[0]
    finally:
        Singleton.set_state(outer)
    _explain(parse(overrides), config_dir)
    raise ConfigError(failure)


def from_words(schema: type, words: Sequence[str]) -> Any:
    """Return an instance of a dataclass from ``KEY=VALUE`` words. Raises: ConfigError."""
    try:
        content = OmegaConf.from_dotlist(list(words))
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(" ".join(str(error).split())) from None
    return _fit(schema, content, "")


def parse(overrides: Sequence[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        word, reason = getattr(error, "override", ""), " ".join(str(error).split("\nSee http")[0].split())
        raise ConfigError(f"{word!r} is no GROUP=CHOICE and no KEY=VALUE ({reason})") from None


def expand_home(word: str) -> str:
    """Replace ``~`` in ``key=~/…`` by the home folder: shells do not expand it there, and Hydra refuses it."""
    key, is_value, value = word.partition("=")
    return f"{key}={expanded(value)}" if is_value and value.startswith("~") else word


def expanded(path: str | Path) -> Path:
    """Return a path with ``~`` or ``~user`` at its beginning replaced by the home folder.

    Raises: ConfigError if there is no such home folder, as for a user id without an entry in /etc/passwd.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        hint = "set HOME, or write the folder without ~, as in data.root=/data"
        raise ConfigError(f"{path}: there is no such home folder; {hint}") from None


def options(group: str, config_dir: str | None = None) -> list[str]:
    """Return the choices of a config group, sorted: the names of its files in the package and in ``config_dir``."""
    return sorted(_files(group, config_dir))


def _files(group: str, config_dir: str | None) -> dict[str, Path]:
    folders = [CONFIGS / group, *([Path(config_dir) / group] if config_dir else [])]
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for folder in folders
        for path in folder.rglob("*.yaml")
    }


def _choices(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that choose task, norm and scale."""
    return [o.input_line for o in parse(overrides) if o.key_or_group in ("task", "norm", "scale") and o.input_line]


def _check_choices(parsed: Sequence[Override], config_dir: str | None) -> None:
    for override in parsed:
        group, value = override.key_or_group, override.value()
        if override.is_delete() and not group.startswith("hydra"):
            raise ConfigError(f"{override.input_line}: a value can be set, but not removed")
        required = group in ("task", "norm", "scale")  # exactly one choice
        if group not in GROUPS or (value is None and not required):
            continue
        if required and not isinstance(value, str):
            raise ConfigError(f"{group} takes one of {', '.join(options(group, config_dir))}")
        for name in value if isinstance(value, list) else [value]:
            known = options(group, config_dir)
            if str(name) not in known:
                hint = nearest(str(name), [f"{group}={choice}" for choice in known] + known)
                raise ConfigError(f"{group}={name} is not known{hint} (one of {', '.join(known)})")


def _explain(parsed: Sequence[Override], config_dir: str | None) -> None:
    """Raise a ConfigError about the first override whose key does not exist; return if there is none."""
    choices = [o.input_line for o in parsed if o.key_or_group in GROUPS and o.input_line]
    composed = _compose(tuple(choices), config_dir, False) if len(choices) < len(parsed) else None
    if composed is None:
        return
    known = _flat(OmegaConf.to_container(composed))
    for override in parsed:
        key = override.key_or_group
        if key in GROUPS or key.startswith("hydra.") or override.is_add() or key in known or _has(composed, key):
            continue
        if key.startswith("norm."):
            _explain_norm_option(key.removeprefix("norm."), composed.norm, config_dir)
        raise ConfigError(f"{key} is not known{nearest(key, [*known, *GROUPS])}")


def _explain_norm_option(option: str, norm: DictConfig, config_dir: str | None) -> None:
    owners = [name for name, path in sorted(_files("norm", config_dir).items()) if option in OmegaConf.load(path)]
    if owners:
        raise ConfigError(f"norm={norm.name} has no option norm.{option} (norms that have it: {', '.join(owners)})")
    known = [f"norm.{key!s}" for key in norm if key != "_target_"]
    raise ConfigError(
        f"norm.{option} is not known{nearest(f'norm.{option}', known)} (norm={norm.name} has {', '.join(known)})"
    )


def _typed(resolved: dict[str, Any], find_class: Callable[[str], type]) -> tuple[Any, Any]:
    """Return a resolved config as an instance of its task's schema, and the norm that the config describes.

    ``find_class``: returns the norm's class for its ``_target_``. Raises: ConfigError.
    """
    try:
        content = OmegaConf.create(resolved)
    except OmegaConfBaseException as error:
        raise ConfigError(_first_line(error)) from None
    return _fit(task_module(content.get("task")).Config, content, ""), norm_from(content.get("norm"), find_class)


def task_module(name: object) -> ModuleType:
    """Return the module of a task, ``rmsexp.tasks.<name>``. It is imported only when needed, because it imports torch.

    Raises: ConfigError if there is no such task.
    """
    module = f"rmsexp.tasks.{name}"
    try:
        found = importlib.import_module(module) if str(name).isidentifier() else None
    except ModuleNotFoundError as error:
        if error.name != module:  # the task's module exists, but something that it imports does not
            raise
        found = None
    if not hasattr(found, "Task"):
        raise ConfigError(f"task={name} has no module {module} with a class Task")
    return cast("ModuleType", found)


def norm_from(content: Any, find_class: Callable[[str], type]) -> Any:
    """Return the norm that a ``norm`` config describes by its class (``_target_``) and options.

    ``find_class``: returns the class for its ``_target_``. Raises: ConfigError.
    """
    if not isinstance(content, DictConfig) or "_target_" not in content:
        raise ConfigError("the norm's file names no class: it needs _target_, name and impl")
    values = DictConfig({key: value for key, value in content.items() if key != "_target_"})
    try:
        options_class = find_class(str(content["_target_"]))
    except ConfigError as error:
        raise ConfigError(f"norm={values.get('name')}: _target_ {error}") from None
    return _fit(options_class, values, "norm.")


def norm_class(target: str) -> type:
    """Return the class of a norm by its path, such as ``rmsexp.norms.RMS``, after importing its module.

    Importing a module runs its code, so ``target`` must come from the user's command line or own configs.

    Raises: ConfigError if there is no such class, or if it is not a norm's.
    """
    module, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(f"{target} cannot be imported ({error})") from None
    if not _is_norm_class(found):
        raise ConfigError(f"{target} is not a dataclass derived from rmsexp.norms.Norm")
    return cast("type", found)


def loaded_norm_class(target: str) -> type:
    """Return the class of a norm by its path without importing anything but the package's own norms.

    A norm that is not of this package is found if the process has imported its module already.

    Raises: ConfigError if no such class is loaded.
    """
    importlib.import_module("rmsexp.norms")
    module, _, name = target.rpartition(".")
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None  # getattr might import a module
    if not _is_norm_class(found):
        raise ConfigError(
            f"{target} is not a class of rmsexp.norms, and a recorded config may not import others; "
            "if you trust this class, name it with --norm-class"
        )
    return cast("type", found)


def _is_norm_class(value: object) -> bool:
    return isinstance(value, type) and is_dataclass(value) and hasattr(value, "linear")


def _fit(schema: type, content: DictConfig, prefix: str) -> Any:
    """Return an instance of a dataclass from a config, after checking types and values. Raises: ConfigError."""
    typed = OmegaConf.structured(schema)
    for name, value in typed.items_ex(resolve=False):
        if isinstance(value, DictConfig) and not isinstance(content.get(name, value), DictConfig):
            keys = ", ".join(f"{prefix}{name}.{key}" for key in map(str, value))
            raise ConfigError(f"{prefix}{name} is a group of keys; set a single key ({keys})")
    try:
        return OmegaConf.to_object(OmegaConf.merge(typed, content))
    except ConfigKeyError as error:
        key, known = f"{prefix}{error.full_key}", _flat(OmegaConf.to_container(typed))
        raise ConfigError(f"{key} is not known{nearest(key, [f'{prefix}{name}' for name in known])}") from None
    except OmegaConfBaseException as error:
        key = f"{prefix}{error.full_key}"
        raise ConfigError(f"{key}: {_first_line(error)}") from None
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _plain(composed: DictConfig) -> dict[str, Any]:
    try:
        return OmegaConf.to_container(composed, resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise ConfigError(_first_line(error)) from None


def _first_line(error: OmegaConfBaseException) -> str:
    return str(error.msg or error).partition("\n")[0]


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    """Return a nested dict as a flat dict with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if hasattr(value, "items") and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _has(composed: DictConfig, key: str) -> bool:
    missing = object()
    return OmegaConf.select(composed, key, default=missing) is not missing


def differences(resolved: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Return the dotted keys of a run's identity whose values differ from ``base``, with the values in ``resolved``.

    A key that ``resolved`` lacks has the value None. ``NOT_IDENTITY`` and the loggers are not part of the identity.
    """
    values, base_values = _identity(resolved), _identity(base)
    keys = sorted({*values, *base_values})
    return {key: values.get(key) for key in keys if values.get(key) != base_values.get(key)}


def digest(resolved: Mapping[str, Any]) -> str:
    """Return a digest of the values of a run's identity, the same for two configs without :func:`differences`."""
    values = {key: value for key, value in _identity(resolved).items() if value is not None}
    return hashlib.sha256(json.dumps(_whole(values), sort_keys=True, default=str).encode()).hexdigest()


def _identity(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a run's identity by their dotted keys."""
    flat = _flat(resolved)
    return {key: value for key, value in flat.items() if key not in NOT_IDENTITY and not key.startswith("logger")}


def _whole(value: Any) -> Any:
    """Return nested values with each float that is a whole number as an integer, since 1.0 == 1."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _suffix(differences: dict[str, Any]) -> str:
    """Return the changed keys as the end of a folder's name.

    File systems limit the length of names: a text longer than ``LONGEST_SUFFIX`` is cut and ends with its digest.
    """
    text = "".join(f"+{key}={_short(value)}" for key, value in differences.items())
    if len(text.encode()) <= LONGEST_SUFFIX:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text.encode()[: LONGEST_SUFFIX - 9].decode(errors='ignore')}+{digest}"


def _short(value: Any) -> str:
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "-".join(_short(item) for item in value)
    return str(value).replace("/", "_").replace(" ", "")
