"""Reproduction of "Root Mean Square Layer Normalization", and a bench that compares normalisation layers."""

from __future__ import annotations

import os
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise SystemExit("rmsexp: Windows itself is not supported; use the Windows Subsystem for Linux (WSL)")

from rmsexp.system import process

# PyTorch's OpenMP threads spin for milliseconds before they sleep. If two runs share the cores, the threads of one spin
# on cores that the other needs: both took 4 to 9 times as long as one alone, and take about twice as long with this
# spin. It cost a run alone up to 12 % (two cores, small layers), within the noise of that machine.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "500")

if TYPE_CHECKING:
    from rmsexp.commands.compare_steps import compare_steps
    from rmsexp.commands.result import Result
    from rmsexp.norms import Norm
    from rmsexp.norms.convert import convert
    from rmsexp.train.recorder import Recorder

__all__ = ["Recorder", "__version__", "compare_steps", "convert", "run"]

__version__ = "0.1.0"

# In "python -m rmsexp…" sys.argv[0] is "-m" until the command's module has been found, which is then imported.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) == signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports ends the process without a traceback
if process.is_command():
    os.environ |= {"MPLBACKEND": "agg", "MATPLOTLIBRC": os.devnull}  # not the backend and style that the user has set


def run(
    task: str = "cifar10",
    norm: str | Norm = "rms",
    overrides: Sequence[str] = (),
    config_dir: str | None = None,
    *,
    quiet: bool = False,
    **values: object,
) -> Result:
    """Begin a run or continue it, and return its record. A run that diverged or reached max_steps is not repeated.

    ``norm``: the name of a norm, perhaps with options, as in "prms+p=0.5", or a norm object, such as ``RMS(name="rms",
    eps=1e-6)``; a norm class of your own must be importable. ``overrides``: GROUP=CHOICE and KEY=VALUE words as on the
    command line. ``config_dir``: a folder with your own configs, as for ``--config-dir``. ``quiet``: show no progress.
    ``values``: values of the config by their keys, such as ``max_steps=20``; keys with dots are written
    ``**{"optim.lr": 0.01}``. Strings among them are never parsed as numbers, lists or references.

    The process keeps the run's settings of torch: the number of threads and, on CUDA, deterministic algorithms.

    Raises: ConfigError for a mistake in the options; RuntimeError if the run fails; RunLockedError if another process
    writes the run; KeyboardInterrupt if Ctrl-C, SIGTERM, SIGHUP or SIGUSR2 stops it; after SIGUSR2 in a job of
    submitit, the exception of submitit's own handler.
    """
    from rmsexp import config
    from rmsexp.commands import result
    from rmsexp.config import words
    from rmsexp.norms import Norm
    from rmsexp.work import runner

    if not isinstance(norm, str | Norm):
        raise config.ConfigError(f"norm must be a name, such as 'rms', or a norm object, not {norm!r}")
    own = None if isinstance(norm, str) else norm
    lost = [word for word in (*overrides, *values) if own is not None and re.match(r"norm(\.|=|$)", word)]
    if lost:
        raise config.ConfigError(f"{lost[0]} has no effect beside a norm object: set it in the object")
    known = config.options("norm", config_dir)
    name = norm if isinstance(norm, str) else norm.name if norm.name in known else "rms"
    chosen = [words.override("task", task), f"norm={name}"]
    typed = [*chosen, *overrides, *(words.override(key, value) for key, value in values.items())]
    job = config.job(words.overrides(typed, config_dir), config_dir, own)
    outcome = runner.execute(job, runner.Conditions(quiet=quiet))
    if outcome.signum is not None:
        raise KeyboardInterrupt
    if outcome.status == "failed":
        raise RuntimeError(outcome.error)
    if outcome.notice:
        warnings.warn(f"{job.folder}: {outcome.notice}", stacklevel=2)
    return result.read(job.folder)


def __getattr__(name: str) -> Any:
    """Return a member that needs torch, imported at its first use, so that ``import rmsexp`` and the help are quick."""
    modules = {
        "convert": "rmsexp.norms.convert",
        "Recorder": "rmsexp.train.recorder",
        "compare_steps": "rmsexp.commands.compare_steps",
    }
    if name in modules:
        return getattr(import_module(modules[name]), name)
    if name == "compare":
        return import_module("rmsexp.compare")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
