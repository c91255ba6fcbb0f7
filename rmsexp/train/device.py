"""The device of a run: its threads, its determinism, and the compilation of a model for it."""

from __future__ import annotations

import os

import torch
from torch import nn

from rmsexp.config import RunConfig
from rmsexp.train import memory


def set_up_device(cfg: RunConfig, n_jobs: int = 1) -> torch.device:
    """The device of a config, with threads and determinism set as it says, and memory kept from step to step.

    Raises: ValueError if there is no such device.
    """
    name = cfg.device if cfg.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda, but torch sees no CUDA device here; use device=cpu or device=auto")
    memory.keep()
    torch.set_num_threads(cfg.threads or max(1, len(os.sched_getaffinity(0)) // n_jobs))
    if name == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = not cfg.deterministic
        # warn only: max_pool2d's backward is listed as nondeterministic, but windows that do not overlap add nothing up
        torch.use_deterministic_algorithms(cfg.deterministic, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return torch.device(name)


def compile_model(model: nn.Module, cfg: RunConfig) -> None:
    """Has the model compiled when it is first called, if the config says so; its initial values are drawn before.

    In place, so that the names of its parameters stay. With ``dynamic`` one compilation serves batches of all shapes.
    """
    if cfg.compile:
        model.compile(dynamic=True)
