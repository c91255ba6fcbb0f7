"""Call Hydra, which composes a config from the words of a command line and calls a function by one of its launchers."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import TaskFunction

from rmsexp import config
from rmsexp.system import process
from rmsexp.system.command_line import ReportedError


def launch(function: TaskFunction, words: Sequence[str], config_name: str = "config") -> int:
    """Let Hydra call ``function`` with the config that it composes from ``words``, in one process or several.

    Return 0, or the exit status with which ``function`` or Hydra ended the process by SystemExit. ``config_name``: a
    file in configs, or a config in Hydra's ConfigStore.

    Raises: ConfigError if Hydra refuses the words, as for hydra.sweeper.max_batch_size=0; OSError; ReportedError if a
    launcher fails.
    """
    sys.argv = ["rmsexp", *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them
    try:
        hydra.main(config_path=str(config.CONFIGS), config_name=config_name, version_base=None)(function)()
    except SystemExit as end:
        return int(end.code or 0)
    except (OSError, ReportedError):
        raise
    except RuntimeError as error:  # such as a process of joblib that was killed
        raise ReportedError(f"{type(error).__name__}: {error}") from None
    except Exception as error:  # Hydra and its plugins raise many types of exceptions for invalid values
        raise config.ConfigError(
            f"Hydra refuses its own options and keys, hydra.… ({type(error).__name__}: {error})"
        ) from None
    return 0


def enter() -> Any:
    """Prepare a process that a launcher of Hydra may have started, and return Hydra's part of the config.

    The process ends with its parent, and works in the folder in which the command was typed, which a process of Ray may
    not do.
    """
    process.follow_parent()
    process.open_output()
    running = HydraConfig.get()
    with suppress(OSError):  # another machine may lack the folder; there, only absolute paths can be used
        os.chdir(running.runtime.cwd)
    return running
