"""Schemas of configs: their keys and types, and how a config becomes typed values. Torch is imported when needed.

A task's schema is the class ``Config`` in its module; a norm's is the class that its config names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from rmsexp.config import score
from rmsexp.config.classes import Find, config_class, loaded, norm_class, task_class
from rmsexp.system.checks import at_least, choice, nearest, not_empty, positive
from rmsexp.system.command_line import ConfigError as ConfigError
from rmsexp.system.command_line import escaped

LARGEST_SEED = 2**63 - 1  # tables of runs hold seeds as integers of 64 bits
REDUCE = ("ordered", "fast")
PRECISIONS = ("float32", "bfloat16")
MOST_THREADS = 1024  # many thousands of threads crash PyTorch


def expanded(path: str | Path) -> Path:
    """Return a path with ``~`` or ``~user`` at its beginning replaced by the home folder.

    Raises: ConfigError if there is no such home folder, as for a user id without an entry in /etc/passwd.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        hint = "set HOME, or write the folder without ~, as in data.root=/data"
        raise ConfigError(f"{path}: there is no such home folder; {hint}") from None


def results_folder(path: str | Path) -> Path:
    """Return the root folder of all records, which need not exist. Raises: ConfigError if a file is in its place."""
    folder = expanded(path)
    if file := next((part for part in (folder, *folder.parents) if part.is_file()), None):
        raise ConfigError(f"results={path}: {file} is a file; name a folder")
    return folder


@dataclass
class DataConfig:
    """The key below ``data`` that every task has. ``root``: folder of all data sets and of what is made from them."""

    root: str = "~/.cache/rmsexp"

    def __post_init__(self) -> None:
        not_empty("data.root", self.root)

    @property
    def root_folder(self) -> Path:
        return expanded(self.root)

    def check_options_of(self, key: str, values: Sequence[str], options: Sequence[str]) -> None:
        """Raise ValueError if one of ``options`` is changed although ``data.<key>`` is none of ``values``.

        Only with these values it is read, but as a changed option it would still be part of a run's identity.
        """
        chosen = getattr(self, key)
        for option in options:
            default = getattr(type(self), option)
            if chosen not in values and getattr(self, option) != default:
                listed = " or ".join(values)
                raise ValueError(
                    f"data.{option} is an option of data.{key}={listed}, and data.{key} is {chosen}: "
                    f"write data.{option}={'null' if default is None else default}"  # the scale may have changed it
                )

    @property
    def own_files(self) -> dict[str, str]:
        """The paths of the user's own files by split, in a task whose data may be ``data.name=files``."""
        paths = {split: getattr(self, split) for split in ("train", "valid", "test")}
        return {split: path and str(expanded(path)) for split, path in paths.items()}

    def check_own_files(self, kind: str) -> None:
        """Raise ValueError unless all of ``own_files`` are given with ``data.name=files``, and none without it.

        ``kind``: what a path is, for the message.
        """
        named = self.name == "files"  # type: ignore[attr-defined]
        for split, path in self.own_files.items():
            if named and not path:
                raise ValueError(f"data.name=files needs data.{split}, {kind}")
            if path and not named:
                raise ValueError(f"data.{split} is read with data.name=files only; add data.name=files")

    def digest_of_own_files(self) -> str:
        """Return a digest of the user's own files that the run reads; "" if it reads none.

        Raises: DataError if a file cannot be read.
        """
        return ""


@dataclass
class WandbConfig:
    """Options of Weights & Biases. ``mode``: offline, online or disabled. The others are those of ``wandb.init``."""

    mode: str = "offline"
    project: str = "rmsexp"
    entity: str | None = None
    tags: list[str] = field(default_factory=list)
    notes: str | None = None

    def __post_init__(self) -> None:
        choice("logger.wandb.mode", self.mode, ("offline", "online", "disabled"))


@dataclass
class TensorBoardConfig:
    """Options of TensorBoard, of which there are none."""


@dataclass
class LoggerConfig:
    """The loggers of a run. None: the run does not use this logger."""

    wandb: WandbConfig | None = None
    tensorboard: TensorBoardConfig | None = None


@dataclass
class DistributedConfig:
    """Options of a run on several processes. ``timeout``: the longest time, in seconds, that one waits for another."""

    timeout: float = 600.0

    def __post_init__(self) -> None:
        positive("distributed.timeout", self.timeout, 1e9)  # torch takes no more


@dataclass
class RunConfig:
    """The keys of every task's config; a task's ``Config`` adds its own. ``*_every``: intervals in steps.

    ``_target_``: the class of the task, such as ``spirals.Task``; None: ``Task`` of the module ``rmsexp.tasks.<task>``.
    ``norm_eps`` and ``keep_scale``: defaults of these options of norms, whose config files refer to them.
    ``evaluation``: one of :data:`rmsexp.config.score.PLANS`, which takes the place of ``eval_every``; or None.
    ``micro_batches``: number of parts of a step's batch, whose gradients are computed one after the other and added.
    ``reduce``: how several processes add up gradients, one of ``REDUCE``. ``precision``: one of ``PRECISIONS``.

    Raises: ValueError for invalid values.
    """

    task: str = MISSING
    _target_: str | None = None
    scale: str = MISSING
    norm: Any = MISSING
    schedule: Any = MISSING
    seed: int = MISSING
    max_steps: int = MISSING
    device: str = MISSING
    threads: int | None = None
    precision: str = MISSING
    micro_batches: int = 1
    reduce: str = "ordered"
    norm_eps: float = 1e-5
    keep_scale: bool | None = None
    deterministic: bool = MISSING
    compile: bool = MISSING
    monitor: bool = False
    results: str = MISSING
    force: bool = MISSING
    log_every: int = MISSING
    eval_every: int = MISSING
    evaluation: str | None = None
    checkpoint_every: int = MISSING
    data: DataConfig = field(default_factory=DataConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)

    @property
    def parts(self) -> tuple[str, int]:
        """Return the key that sets the number of micro-batches per step, and this number."""
        return "micro_batches", self.micro_batches

    @property
    def test_splits(self) -> Sequence[str]:
        """The names of the data's test splits that a run evaluates."""
        return ("test",)

    def __post_init__(self) -> None:
        choice("reduce", self.reduce, REDUCE)
        choice("precision", self.precision, PRECISIONS)
        if self.evaluation is not None:
            choice("evaluation", self.evaluation, score.PLANS)
            score.steps(self.schedule.steps)
        if self.device == "gpu":
            raise ValueError("device=gpu is not known; write device=cuda")
        choice("device", self.device, ("auto", "cpu", "cuda"))
        for key in ("log_every", "eval_every", "checkpoint_every", "max_steps", "micro_batches"):
            at_least(key, getattr(self, key), 1)
        batch_size = getattr(self, "batch_size", None)
        at_least("batch_size", batch_size, 1)
        if batch_size is not None and self.micro_batches > batch_size:
            raise ValueError(f"micro_batches={self.micro_batches} is more than batch_size={batch_size}")
        at_least("seed", self.seed, 0, LARGEST_SEED)
        not_empty("results", self.results)
        at_least("threads", self.threads, 1, MOST_THREADS)


def checked(resolved: dict[str, Any], find: Find) -> tuple[Any, Any, dict[str, Any]]:
    """Return a resolved config as an instance of its task's schema, its norm, and the config :func:`normalised`.

    ``find``: returns the class that a ``_target_`` names. Raises: ConfigError.
    """
    content = as_config(resolved)
    check_missing(content)
    typed, typed_norm = _typed(content, find)
    return _instance(typed, ""), _instance(typed_norm, "norm."), _normalised(resolved, typed, typed_norm)


def normalised(resolved: dict[str, Any], find: Find) -> dict[str, Any]:
    """Return a resolved config with its values as the schemas of its task and norm have them.

    Different spellings of a value thus become one: on is True, 1 is 1.0 if the schema has a float, and -0.0 is 0.0.

    Raises: ConfigError for unknown keys and for values of another type.
    """
    return _normalised(resolved, *_typed(as_config(resolved), find))


def as_config(values: dict[str, Any]) -> DictConfig:
    """Return plain values, such as those of a resolved config, as a config; text stays text. Raises: ConfigError."""
    try:
        return OmegaConf.create(escaped(values))
    except OmegaConfBaseException as error:
        raise ConfigError(_first_line(error)) from None


def _normalised(resolved: dict[str, Any], config: DictConfig, norm: DictConfig) -> dict[str, Any]:
    return _values_of(resolved, plain_values(config) | {"norm": resolved["norm"] | plain_values(norm)})


def _typed(content: DictConfig, find: Find) -> tuple[DictConfig, DictConfig]:
    """Return a config with the keys and types of its task's schema, and the norm's options with those of its class."""
    if isinstance(content.get("task"), DictConfig):
        raise ConfigError("the task's file must begin with the line '# @package _global_', and have task: <its name>")
    config = _merge(config_class(task_class(content.get("task"), content.get("_target_"), find)), content, "")
    if not isinstance(content.get("norm"), DictConfig) or "_target_" not in content.norm:
        raise ConfigError("the norm's file names no class: it needs _target_, name and impl")
    values = content.norm.copy()
    target = str(values.pop("_target_"))
    try:
        options_class = norm_class(target, find)
    except ConfigError as error:
        raise ConfigError(f"norm={values.get('name')}: _target_ {error}") from None
    return config, _merge(options_class, values, "norm.")


def check_missing(content: DictConfig) -> None:
    """Raise ConfigError for a value that is missing; OmegaConf would take the default of the schema instead."""
    if missing := sorted(OmegaConf.missing_keys(content)):
        raise ConfigError(f"{missing[0]} has no value; set it (??? stands for a missing one)")


def respelled(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded config with its values normalised, or unchanged if it does not fit today's schemas."""
    try:
        return normalised(recorded, loaded)
    except (ConfigError, OmegaConfBaseException, LookupError, AttributeError, TypeError):
        return recorded


def _values_of(keys: Any, values: Any) -> Any:
    """Return ``values`` with only the keys of the nested dicts ``keys``, and with 0.0 for -0.0."""
    if isinstance(keys, dict) and isinstance(values, dict):
        return {key: _values_of(keys[key], values[key]) for key in keys}
    return values + 0.0 if isinstance(values, float) else values


def fit(schema: type, content: DictConfig, prefix: str) -> Any:
    """Return a config as a checked instance of ``schema``. ``prefix``: of keys in messages. Raises: ConfigError."""
    return _instance(_merge(schema, content, prefix), prefix)


def _instance(typed: DictConfig, prefix: str) -> Any:
    """Return a structured config as an instance of its dataclass, which checks the values. Raises: ConfigError."""
    try:
        return OmegaConf.to_object(typed)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{prefix}{error.full_key} has no value: its config lacks this key") from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"{prefix}{error.full_key}: {_first_line(error)}") from None
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _merge(schema: type, content: DictConfig, prefix: str) -> DictConfig:
    """Return a config with the keys and types of a dataclass, and with the values of ``content``.

    Raises: ConfigError for unknown keys and for values of another type.
    """
    typed = _structured(schema)
    for name, value in typed.items_ex(resolve=False):
        given = content.get(name, value)
        if isinstance(value, DictConfig) and len(value) and not isinstance(given, DictConfig):
            keys = ", ".join(f"{prefix}{name}.{key}" for key in map(str, value))
            raise ConfigError(f"{prefix}{name} is a group of keys; set a single key ({keys})")
        nested = isinstance(given, ListConfig) and any(isinstance(item, DictConfig | ListConfig) for item in given)
        if isinstance(value, ListConfig) and (nested or not isinstance(given, ListConfig | None)):
            raise ConfigError(f"{prefix}{name} must be a list of single values, in brackets: {prefix}{name}=[…]")
    try:
        return OmegaConf.merge(typed, content)  # type: ignore[return-value]
    except ConfigKeyError as error:
        key = f"{prefix}{error.full_key}"
        known = {f"{prefix}{name}" for config in (typed, content) for name in flatten(OmegaConf.to_container(config))}
        others = sorted(name for name in known if not f"{name}.".startswith(f"{key}."))
        raise ConfigError(f"{key} is not known{nearest(key, others)}") from None
    except OmegaConfBaseException as error:
        if not error.full_key and "Cannot merge" in str(error):
            raise ConfigError("a list stands where keys belong, or keys where a list does") from None
        raise ConfigError(f"{prefix}{error.full_key}: {_first_line(error)}") from None
    except OverflowError:
        raise ConfigError("an integer is beyond the range of floats") from None


_structured = cache(OmegaConf.structured)  # converting a dataclass is slow; OmegaConf.merge works on a copy


def plain_values(composed: DictConfig) -> dict[str, Any]:
    """Return a composed config as nested dicts, with references such as ``${seed}`` resolved. Raises: ConfigError."""
    try:
        return OmegaConf.to_container(composed, resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {_first_line(error)}") from None


def _first_line(error: OmegaConfBaseException) -> str:
    return str(error.msg or error).partition("\n")[0]


def flatten(content: Any, prefix: str = "") -> dict[str, Any]:
    """Return a nested dict as a flat dict with dotted keys; an empty dict stays a value."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if hasattr(value, "items") and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
