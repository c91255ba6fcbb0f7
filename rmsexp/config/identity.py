"""A run to be done: its config, which of its values tell it apart from other runs, and the names of its folders."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rmsexp.config.classes import Find, imported, make_importable
from rmsexp.config.schema import ConfigError, checked, expanded, flatten, normalised, plain_values, results_folder
from rmsexp.config.words import compose, file, is_for_sweeps, own_files, parse

# Keys that are not part of a run's identity: changing one adds no +key=value to the name of the run's folder, and does
# not prevent the run from continuing. They do not change what is trained, or the folder's path contains them anyway.
NOT_IDENTITY = {
    *("task", "scale", "seed", "results", "data.root", "data.folder", "device", "threads", "force", "max_steps"),
    *("log_every", "eval_every", "checkpoint_every", "distributed.timeout", "monitor"),
    *("norm_eps", "keep_scale"),  # the options of norms that take their values from here are part of the identity
}
# Keys that were added later, with the value that runs without them have. With this value a run has the same identity as
# without the key, so it continues, and the key is no part of a folder's name unless a recipe has another value.
ADDED = {
    "micro_batches": 1,
    "reduce": "ordered",
    "model.tied": True,
    "model.v_norm": False,
    "model.embedding_norm": False,
    "optim.name": "adamw",
    "optim.decay_gains": False,
    "model.variant": "nematus_tf",
    "norm.gain": True,
    "norm.weight_offset": False,
}

# With data.name=files the paths of the user's own files are not part of the identity either. The setting's name has the
# first digits of a digest of their contents instead, so that a setting stays the same wherever the files lie.
OWN_FILES = ("data.train", "data.valid", "data.test")
DIGITS = 8

LONGEST_SUFFIX = 200  # largest number of bytes for the changed keys in the name of a setting or series


def differences(resolved: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Return the dotted keys of a run's identity whose values differ from ``base``, with the values in ``resolved``.

    A key that ``resolved`` lacks has the value None. ``NOT_IDENTITY`` and the loggers are not part of the identity.
    """
    values, base_values = identity(resolved), identity(base)
    keys = [key for key in sorted({*values, *base_values}) if values.get(key) != base_values.get(key)]
    flat = flatten(resolved)
    return {key: flat.get(key) for key in keys}


def digest(resolved: Mapping[str, Any]) -> str:
    """Return a digest of the values of a run's identity, the same for two configs without :func:`differences`."""
    return hashlib.sha256(json.dumps(whole(identity(resolved)), sort_keys=True, default=str).encode()).hexdigest()


def identity(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a run's identity by their dotted keys, without values of ``ADDED`` and without None.

    The paths of the user's own files are empty, as they are with other data.
    """
    values = flatten(resolved)
    if values.get("data.name") == "files":
        values |= {key: "" for key in OWN_FILES if key in values}
    return {
        key: value
        for key, value in values.items()
        if key not in NOT_IDENTITY and not key.startswith("logger") and value != ADDED.get(key)
    }


def whole(value: Any) -> Any:
    """Return nested values with each float that is a whole number as an integer, since 1.0 == 1."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def suffix(differences: dict[str, Any]) -> str:
    """Return the changed keys as the end of a folder's name.

    File systems limit the length of names: a text longer than ``LONGEST_SUFFIX`` is cut and ends with its digest.
    """
    return shortened("".join(f"+{key}={_short(value)}" for key, value in differences.items()))


def shortened(text: str, longest: int = LONGEST_SUFFIX) -> str:
    """Return a name, or the end of one, cut to ``longest`` bytes, with its digest if it is longer."""
    if len(text.encode()) <= longest:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text.encode()[: longest - 9].decode(errors='ignore')}+{digest}"


def _short(value: Any) -> str:
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "-".join(_short(item) for item in value)
    return str(value).replace("/", "_").replace(" ", "")


@dataclass(frozen=True)
class Job:
    """A run to be done: its checked config, its norm, and the folder of its record.

    ``setting``: the scale and the keys, except those of the norm, that were changed, as in demo+batch_size=8; for the
    user's own files also their digest, as in demo+data.name=files+data=1f0c92ab.
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
    def impl(self) -> str:
        """The implementation of the norm that was asked for, "eager" or "fused"."""
        return str(self.norm.impl)

    @property
    def folder(self) -> Path:
        return self.setting_folder / self.series / f"seed{self.config.seed}"

    @property
    def again(self) -> str:
        """Return what is to be done to continue the run: with ``force`` the same command would begin another one."""
        return "repeat the command without force=true" if self.config.force else "repeat the command"

    @property
    def setting_folder(self) -> Path:
        return expanded(self.config.results) / self.config.task / self.setting


def _composed(overrides: Sequence[str], config_dir: str | None) -> dict[str, Any]:
    """Return a composed config without what the norm's file says about the norm (:func:`.words.about_norms`)."""
    composed = plain_values(compose(overrides, config_dir))
    if isinstance(composed.get("norm"), dict):
        composed["norm"].pop("about", None)
    return composed


@lru_cache(maxsize=256)
def _base(chosen: tuple[str, ...], config_dir: str | None, own: object) -> dict[str, Any]:  # noqa: ARG001
    """Return the normalised config of the chosen files alone. The names of runs say what differs from it.

    It is cached, so callers must not change it. ``own``: :func:`.words.own_files`, so that changed files are noticed.
    """
    composed = _composed(chosen, config_dir)
    if isinstance(composed.get("model"), dict):
        composed["model"].pop("variant", None)  # names have the variant, but not the values it determines
    return normalised(composed, imported)


def job(overrides: Sequence[str], config_dir: str | None = None, own_norm: Any = None, find: Find = imported) -> Job:
    """Return the job of one run's overrides, with its config composed and checked.

    ``own_norm``: a norm object, which takes the place of the norm that the overrides choose. ``find``: returns the
    classes of task and norm; with :func:`.classes.loaded` in place of ``imported`` no module is imported for the norm.

    Raises: ConfigError for a mistake in the overrides or in a config file; DataError if one of the user's own files
    cannot be read.
    """
    for word in overrides:
        if is_for_sweeps(word):
            raise ConfigError(f"{word} has an effect in sweeps only: python -m rmsexp -m")
    composed = _composed(overrides, config_dir)
    make_importable("." if config_dir is None else config_dir)
    if own_norm is not None:
        composed["norm"] = own_norm.as_config()
    config, norm, resolved = checked(composed, find)
    if not re.fullmatch(r"[^\W\d_][\w.-]*", norm.name):
        raise ConfigError(f"norm.name={norm.name} cannot name a folder; use a letter, then letters, digits, _, - and .")
    for path in norm.imports if find is imported else ():
        imported(path)
    results_folder(config.results)  # raises if a file is in its place
    names = {"task": config.task, "scale": config.scale} | ({"norm": norm.name} if own_norm is None else {})
    _check_own_names(overrides, names, config_dir)
    keys = ("task", "norm", "scale", "model.variant")
    chosen = [word.input_line or "" for word in parse(overrides) if word.key_or_group in keys]
    base = _base(tuple(chosen), config_dir, own_files(config_dir))
    if own_norm is not None and base["norm"]["name"] != norm.name:  # a norm without a config
        base = base | {"norm": own_norm.as_config(defaults=True)}
    changed = differences(resolved, base)
    if "norm.name" in changed:
        raise ConfigError("norm.name cannot be set; choose another norm with norm=…")
    if (kind := changed.get("optim.clipping")) and flatten(resolved).get("optim.clip", 0) is None:
        raise ConfigError(f"optim.clipping={kind} has no effect with optim.clip=null; set optim.clip")
    of_norm = {key.removeprefix("norm."): value for key, value in changed.items() if key.startswith("norm.")}
    of_setting = {key: value for key, value in changed.items() if not key.startswith("norm.")}
    if digest_of_own := config.data.digest_of_own_files():
        of_setting["data"] = digest_of_own[:DIGITS]
    setting, series = config.scale + suffix(of_setting), norm.name + suffix(of_norm)
    return Job(tuple(overrides), config, norm, resolved, setting, series)


def _check_own_names(overrides: Sequence[str], names: Mapping[str, str], config_dir: str | None) -> None:
    """Raise ConfigError if the task, scale or norm that stands in a chosen file is not the name of the file.

    The run's folder has the name in the file, so the run would be recorded as another task, scale or norm.
    """
    for override in {each.key_or_group: each for each in parse(overrides)}.values():  # the last one of each counts
        group, choice = override.key_or_group, str(override.value())
        if group in names and names[group] != Path(choice).name:
            key = "norm.name" if group == "norm" else group
            path = file(group, choice, config_dir)
            raise ConfigError(f"{path}: {key} is {names[group]}; it must be {path.stem}, the name of the file")


def check_one_setting(key: str, jobs: Sequence[Job]) -> None:
    """Raise ConfigError if ``jobs``, one for each norm that the option ``key`` lists, are of several settings."""
    if len({job.setting for job in jobs}) > 1:
        hint = "leave out norms with +model.…=… or +schedule.…=…"
        raise ConfigError(f"{key}: only norms of one setting are timed together; {hint}")
