"""The classes of norms and tasks, which configs name by their path (``_target_``). Torch is imported when needed."""

import ast
import importlib
import importlib.util
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from rmsexp.system.command_line import ConfigError
from rmsexp.system.readers import checked_yaml

# Of each module that :func:`imported` has imported, and of those in :func:`with_own_imports`, the content of its file
# then: the code that runs in this process, also if the file is edited afterwards.
sources: WeakKeyDictionary[ModuleType, bytes] = WeakKeyDictionary()
INSTALLED = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
Find = Callable[[str], Any]  # returns what a path such as package.module.Class names; raises ConfigError


def imported(path: str) -> Any:
    """Return what a path names, after importing its module.

    Importing a module runs its code, so ``path`` must come from the user's command line or own configs.

    Raises: ConfigError if there is no such module or name.
    """
    module, _, name = path.rpartition(".")
    try:
        found = importlib.import_module(module)
        for each in with_own_imports(module) if found not in sources else ():
            sources.setdefault(sys.modules[each], file_of(each).read_bytes())
        return getattr(found, name)
    except Exception as error:  # the module of a norm or task is any program
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise ConfigError(f"{path} cannot be imported ({kind}{error})") from None


def file_of(module: str) -> Path:
    """Return the file of an imported module; a path that does not exist if it has none."""
    return Path(getattr(sys.modules.get(module), "__file__", None) or "no file")


def with_own_imports(name: str) -> set[str]:
    """Return the name of a module and of those that it imports, also through others, if they are imported and have a
    file. Modules of Python, of installed packages and of this package are left out, except the first.
    """
    found, left = set[str](), [name]
    while left:
        each = left.pop()
        path, module = file_of(each), sys.modules.get(each)
        foreign = each.partition(".")[0] == "rmsexp" or any(path.is_relative_to(folder) for folder in INSTALLED)
        if module is None or each in found or not path.is_file() or (foreign and each != name):
            continue
        found.add(each)
        package = each if hasattr(module, "__path__") else each.rpartition(".")[0]
        left.append(each.rpartition(".")[0])
        for node in ast.walk(ast.parse(sources.get(module) or path.read_bytes())) if path.suffix == ".py" else ():
            if isinstance(node, ast.Import):
                left += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                left += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return found


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
        except YAMLError as error:
            raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
        if isinstance(content, DictConfig) and "_target_" in content:
            imported(str(content["_target_"]))
