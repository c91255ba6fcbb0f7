"""Read JSON and YAML files as plain data. The records of a run may come from somebody else, or be damaged.

Each reader returns the mapping that a file holds, and raises OSError if the file cannot be opened, or else ValueError
with a message of one line that names the file. YAML that is too large, too deeply nested or has aliases is refused
before it takes time or memory.
"""

from __future__ import annotations

import errno
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from rmsexp.system.command_line import brief, escaped
from rmsexp.system.files import read_regular

LARGEST_YAML = 1 << 15  # characters; a run's config.yaml has about two thousand characters
# errors of the system that show no damage, such as missing permissions: the file must not be replaced
NOT_DAMAGE = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE)
DEEPEST_YAML = 20  # levels of nesting; a run's config has four
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is the faster one


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises: OSError if the file cannot be opened; ValueError if it does not hold a JSON object in UTF-8.
    """
    text = _text(path)
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # fails for half of a surrogate pair, which cannot be printed
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({_one_line(error)})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a file that holds a run's resolved config.

    Such a file has values only, so interpolations (``${name}``) and aliases (``*name``) are refused. A few lines of
    them can stand for gigabytes, and some interpolations read environment variables. In text ``${`` is written ``\\${``
    (:func:`yaml_text`).

    Raises: OSError if the file cannot be opened; ValueError if it does not hold such a mapping in UTF-8.
    """
    text = checked_yaml(path)
    try:
        value = yaml.load(text, _Loader)
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{line}: {_one_line(error.problem or error.context)}") from None
    except Exception as error:  # values that cannot be constructed raise many types of exceptions
        raise ValueError(f"{path} is not YAML of plain values ({_one_line(error)})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not consist of keys and values")
    return value


def checked_yaml(path: Path) -> str:
    """Return the text of a YAML file, such as a config of the user's own, unless it would take much time or memory.

    Raises: OSError if it cannot be opened; ValueError if it is too large or a pipe. Text that is no YAML is returned.
    """
    text = _text(path)
    if len(text) > LARGEST_YAML:
        raise ValueError(f"{path}: more than {LARGEST_YAML:,} characters")
    depth = 0
    with suppress(yaml.YAMLError):
        for event in yaml.parse(text, _SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth >= DEEPEST_YAML:
                raise ValueError(f"{path}: more than {DEEPEST_YAML} levels of nesting")
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(f"{path}: an alias (*{event.anchor}) is not allowed; write the value again")
    return text


def yaml_text(values: Any) -> str:
    """Return the content of a file from which :func:`read_yaml` reads these values."""
    return yaml.safe_dump(escaped(values), sort_keys=False)


class _Loader(_SafeLoader):
    """Loads plain values; refuses interpolations and repeated keys."""

    def construct_scalar(self, node: Any) -> Any:
        text = super().construct_scalar(node)
        value = re.sub(r"(\\*)\\\$\{", lambda match: match[1][::2] + "${", text)  # the reverse of escaped
        if escaped(value) != text:
            raise yaml.MarkedYAMLError(problem="an interpolation is not allowed", problem_mark=node.start_mark)
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise yaml.MarkedYAMLError(problem="a key occurs twice", problem_mark=node.start_mark)
        return mapping


def _text(path: Path) -> str:
    """Return the text of a file. Raises: OSError if it cannot be opened; ValueError if it is not UTF-8."""
    try:
        return read_regular(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 (byte {error.start})") from None


def _one_line(error: object) -> str:
    return brief(" ".join(str(error).split()))
