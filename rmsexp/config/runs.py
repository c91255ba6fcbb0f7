"""A run to be done: its config, and the names of its folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rmsexp.config.classes import imported, make_importable
from rmsexp.config.composition import OwnFiles, compose, file, is_for_sweeps, parse, state_of_own_files
from rmsexp.config.identity import DIGITS, differences, suffix
from rmsexp.config.schema import ConfigError, checked, expanded, flatten, normalised, plain_values, results_folder


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
    def folder(self) -> Path:
        return self.setting_folder / self.series / f"seed{self.config.seed}"

    @property
    def again(self) -> str:
        """Return what is to be done to continue the run: with ``force`` the same command would begin another one."""
        return "repeat the command without force=true" if self.config.force else "repeat the command"

    @property
    def setting_folder(self) -> Path:
        return expanded(self.config.results) / self.config.task / self.setting


def job(overrides: Sequence[str], config_dir: str | None = None) -> Job:
    """Return the job of one run's overrides, with its config composed and checked.

    Raises: ConfigError for a mistake in the overrides or in a config file; DataError if one of the user's own files
    cannot be read.
    """
    for word in overrides:
        if is_for_sweeps(word):
            raise ConfigError(f"{word} has an effect in sweeps only: python -m rmsexp -m")
    composed = plain_values(compose(overrides, config_dir))
    if config_dir is not None:
        make_importable(config_dir)
    config, norm, resolved = checked(composed, imported)
    results_folder(config.results)  # raises if a file is in its place
    _check_own_names(overrides, {"task": config.task, "scale": config.scale, "norm": norm.name}, config_dir)
    keys = ("task", "norm", "scale", "model.variant")
    choices = tuple(word.input_line or "" for word in parse(overrides) if word.key_or_group in keys)
    base = _base(choices, config_dir, state_of_own_files(config_dir))
    setting, series = _names(resolved, base, config.data.digest_of_own_files()[:DIGITS])
    return Job(tuple(overrides), config, norm, resolved, setting, series)


def _check_own_names(overrides: Sequence[str], names: Mapping[str, str], config_dir: str | None) -> None:
    """Raise ConfigError if the task, scale or norm that stands in a chosen file is not the name of the file.

    The run's folder has the name in the file, so the run would be recorded as another task, scale or norm.
    """
    for override in parse(overrides):
        group, choice = override.key_or_group, str(override.value())
        if group in names and names[group] != Path(choice).name:
            key = "norm.name" if group == "norm" else group
            path = file(group, choice, config_dir)
            raise ConfigError(f"{path}: {key} is {names[group]}; it must be {path.stem}, the name of the file")


@lru_cache(maxsize=256)
def _base(
    chosen: tuple[str, ...],
    config_dir: str | None,
    state: OwnFiles,  # noqa: ARG001
) -> dict[str, Any]:
    """Return the config of a run's task, norm, scale and variant without other options.

    ``state``: place, size and time of the user's own files, which may change meanwhile, as in a notebook.
    """
    composed = plain_values(compose(chosen, config_dir))
    if isinstance(composed.get("model"), dict):
        composed["model"].pop("variant", None)  # so that names have the variant, but not the values it determines
    return normalised(composed, imported)


def _names(resolved: dict[str, Any], base: dict[str, Any], own: str) -> tuple[str, str]:
    """Return the names of setting and series, by the changes from ``base`` to ``resolved``.

    ``own``: the digest of the user's own files, or "".
    """
    changed = differences(resolved, base)
    if "norm.name" in changed:
        raise ConfigError("norm.name cannot be set; choose another norm with norm=…")
    if (kind := changed.get("optim.clipping")) and flatten(resolved).get("optim.clip", 0) is None:
        raise ConfigError(f"optim.clipping={kind} has no effect with optim.clip=null; set optim.clip")
    norm_changes = {key.removeprefix("norm."): value for key, value in changed.items() if key.startswith("norm.")}
    setting_changes = {key: value for key, value in changed.items() if not key.startswith("norm.")}
    setting_changes |= {"data": own} if own else {}
    return resolved["scale"] + suffix(setting_changes), resolved["norm"]["name"] + suffix(norm_changes)


def check_one_setting(key: str, jobs: Sequence[Job]) -> None:
    """Raise ConfigError if norms of ``key`` have options of the model: only steps of one setting are timed together."""
    if len({job.setting for job in jobs}) > 1:
        raise ConfigError(f"{key}: steps of one setting are timed together; leave out the norms with +model.…=…")
