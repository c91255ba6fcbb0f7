"""The classes of norms and tasks, which configs name by their path (``_target_``). Torch is imported when needed."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rmsexp.system.command_line import ConfigError
from rmsexp.system.readers import checked_yaml

# Of each module that :func:`imported` has imported, its :func:`sources_of` then: the code that runs in this process,
# also if files are edited afterwards.
sources: WeakKeyDictionary[ModuleType, dict[str, bytes]] = WeakKeyDictionary()
Find = Callable[[str], Any]  # returns what a path such as package.module.Class names; raises ConfigError


def imported(path: str) -> Any:
    """Return what a path names, after importing its module.

    Importing a module runs its code, so ``path`` must come from the user's command line or own configs.

    Raises: ConfigError if there is no such module or name.
    """
    module, _, name = path.rpartition(".")
    if not module:
        raise ConfigError(f"{path} cannot be imported: it names no module; write MODULE.{path}")
    try:
        found = importlib.import_module(module)
        if found not in sources:
            sources[found] = sources_of(module)
        return getattr(found, name)
    except Exception as error:  # the module of a norm or task is any program
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise ConfigError(f"{path} cannot be imported ({kind}{error})") from None


def sources_of(module: str) -> dict[str, bytes]:
    """Return the content of an imported module's file, and of the files of those modules that it imports from its
    folder or package, also through others, by the names of the modules. Those of this package are left out.

    Imports are looked for in the texts, so the result does not depend on what else is imported.
    """
    path = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    if not path.is_file():
        return {}
    root = [*path.parents][module.count(".") + (path.name == "__init__.py")]
    found, left = {module: path.read_bytes()}, [(module, path)]
    while left and root.name not in ("site-packages", "dist-packages"):
        name, path = left.pop()
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for each in _imports(found[name], package):
            place = root.joinpath(*each.split("."))
            file = next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)
            if file is not None and each not in found and each.partition(".")[0] != "rmsexp":
                found[each] = file.read_bytes()
                left.append((each, file))
    return found


def _imports(source: bytes, package: str) -> set[str]:
    """Return the names that the source of a module in ``package`` may import as modules, with their packages."""
    names = [package]
    with suppress(SyntaxError, ValueError):  # not Python
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                with suppress(ImportError):  # it is beyond the top-level package, perhaps in a try
                    base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                    names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    parts = [name.split(".") for name in names if name]
    return {".".join(own[:end]) for own in parts for end in range(1, len(own) + 1)}


def loaded(path: str) -> Any:
    """Return what a path names if its module is imported already; this imports only the package's own norms.

    Raises: ConfigError if it is not found.
    """
    importlib.import_module("rmsexp.norms")
    module, _, name = path.rpartition(".")
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None  # getattr might import a module
    if found is None:
        raise ConfigError(
            f"{path} is not a class of rmsexp.norms or rmsexp.tasks, and a recorded config may not import others; "
            "if you trust it, use --config-dir DIR, where DIR/norm or DIR/task has its config, or --norm-class"
        )
    return found


def norm_class(target: str, find: Find = imported) -> type:
    """Return the class of a norm by its path, such as ``rmsexp.norms.RMS``. Raises: ConfigError."""
    found = find(target)
    if not (isinstance(found, type) and is_dataclass(found) and hasattr(found, "linear")):
        raise ConfigError(f"{target} is not a dataclass derived from rmsexp.norms.Norm")
    return found


def task_class(name: object, target: object = None, find: Find = imported) -> Any:
    """Return the class of a task: the one that ``target`` names, or ``Task`` of ``rmsexp.tasks.<name>``.

    Its module also has the schema of its config, the class ``Config`` (:func:`config_class`).

    Raises: ConfigError if there is no such class, or no ``Config`` beside it.
    """
    path = f"rmsexp.tasks.{name}.Task" if target is None else str(target)
    try:
        found = imported(path) if target is None else find(path)
    except ConfigError as error:
        hint = "; a task of your own names its class under _target_ in its config" if target is None else ""
        raise ConfigError(f"task={name}: {error}{hint}") from None
    if not isinstance(found, type):
        raise ConfigError(f"task={name}: {path} is not a class")
    config_class(found)
    return found


def target_of_class(config: Any) -> Any:
    """Return the target of a config's task. Raises: ConfigError if only objects of its class have it, not the class."""
    found = getattr(task_class(config.task, config._target_), "target", None)
    if not hasattr(found, "mode"):  # a property has none
        needs = "a campaign or search needs target as an attribute of the task's class"
        raise ConfigError(f"task={config.task}: {needs}")
    return found


def config_class(task: type) -> type:
    """Return the schema of a task's config: the class ``Config`` in the task's module. Raises: ConfigError."""
    found = vars(sys.modules[task.__module__]).get("Config")
    if not (isinstance(found, type) and is_dataclass(found)):
        raise ConfigError(f"{task.__module__} has no dataclass Config beside its class {task.__name__}")
    return found


def make_importable(config_dir: str) -> None:
    """Let modules be imported from the current folder, as by ``python -m``, and from that of ``--config-dir``."""
    for folder in (Path.cwd(), Path(config_dir).absolute()):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def load_own(config_dir: str | None, norm: str | None = None) -> None:
    """Import the classes that norms and tasks in a folder of configs name, and the class ``norm``, for :func:`loaded`.

    Raises: ConfigError if there is no such folder, a file is no YAML, or a class cannot be imported; ValueError or
    OSError as :func:`.checked_yaml`.
    """
    if config_dir is not None and not Path(config_dir).is_dir():
        raise ConfigError(f"--config-dir {config_dir} is not a folder")
    make_importable(config_dir or ".")
    if norm is not None:
        imported(norm)
    groups = [Path(config_dir, group) for group in ("norm", "task")] if config_dir is not None else []
    for path in sorted(file for group in groups for file in group.rglob("*.yaml")):
        checked_yaml(path)
        try:
            content = OmegaConf.load(path)
            target = content.get("_target_") if isinstance(content, DictConfig) else None
        except (YAMLError, OSError, OmegaConfBaseException) as error:  # OSError: no keys and values
            raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
        if target is not None:
            imported(str(target))
