"""The identity of a run: which values of its config tell it apart from others, and the names of its folders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from rmsexp.config.schema import flatten

# Keys that are not part of a run's identity: changing one adds no +key=value to the name of the run's folder, and does
# not prevent the run from continuing. They do not change what is trained, or the folder's path contains them anyway.
NOT_IDENTITY = {
    *("task", "scale", "seed", "results", "data.root", "device", "threads", "force", "max_steps"),
    *("log_every", "eval_every", "checkpoint_every", "distributed.timeout"),
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
    return hashlib.sha256(json.dumps(_whole(identity(resolved)), sort_keys=True, default=str).encode()).hexdigest()


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


def _whole(value: Any) -> Any:
    """Return nested values with each float that is a whole number as an integer, since 1.0 == 1."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
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
