"""The device of a run: its threads, its determinism, and the compilation of a model for it."""

from __future__ import annotations

import os

import torch
from torch import nn

from rmsexp.config import RunConfig
from rmsexp.train import memory


def set_up_device(cfg: RunConfig, n_jobs: int = 1) -> torch.device:
    """Return the config's device, after setting threads, determinism and the reuse of memory (:mod:`.memory`).

    Raises: ValueError if this machine has no such device.
    """
    name = cfg.device if cfg.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda, but torch sees no CUDA device here; use device=cpu or device=auto")
    memory.keep()
    torch.set_num_threads(cfg.threads or max(1, len(os.sched_getaffinity(0)) // n_jobs))
    if name == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = not cfg.deterministic
        # Only warn: max_pool2d's backward counts as nondeterministic, but it is not when windows do not overlap.
        torch.use_deterministic_algorithms(cfg.deterministic, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return torch.device(name)


def compile_model(model: nn.Module, cfg: RunConfig) -> None:
    """Compile the model at its first call, if the config says so. Its initial values must have been drawn before.

    Compiling in place keeps the parameters' names. With ``dynamic`` one compilation serves batches of all shapes.
    """
    if cfg.compile:
        model.compile(dynamic=True)
