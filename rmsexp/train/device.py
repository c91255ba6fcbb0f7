"""Set up the device of a run."""

import ctypes
import inspect
import os
from contextlib import suppress

import torch

from rmsexp.config import ConfigError, RunConfig
from rmsexp.norms.kernels import recurrences
from rmsexp.system import cores, process

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from glibc's malloc.h


def available(wanted: torch.device | str | None = None) -> torch.device:
    """Return the device ``wanted``; None stands for the GPU if there is one, else the CPU.

    Raises: ConfigError if it is neither the CPU nor a CUDA device that torch sees.
    """
    with suppress(RuntimeError):  # torch has no device of this name
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if wanted is None else wanted)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ConfigError("torch sees no CUDA device here; use the device cpu")
        if device.type in ("cpu", "cuda") and (device.index or 0) < max(1, torch.cuda.device_count()):
            return device
    raise ConfigError(f"device {wanted}: use cpu, cuda, or cuda:N (torch sees {torch.cuda.device_count()} GPUs here)")


def set_up_device(cfg: RunConfig, n_jobs: int = 1) -> torch.device:
    """Set threads, determinism on CUDA, :func:`keep_freed` and :func:`leave_compiler_out`; return the config's device.

    ``n_jobs``: the number of runs among which the CPU cores are divided (:func:`rmsexp.system.cores.threads`), unless
    the config sets ``threads``. Each process that torchrun started on this machine gets a GPU of its own.

    Raises: as :func:`available`; ValueError if torch sees no CUDA device for this process.
    """
    name = available(None if cfg.device == "auto" else cfg.device).type
    keep_freed()
    leave_compiler_out(not cfg.compile)
    torch.set_num_threads(cfg.threads or cores.threads(n_jobs))
    if name == "cuda":
        # torch reads it at the first matrix product on the GPU, and refuses values with which results may differ
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = not cfg.deterministic
        torch.backends.cudnn.allow_tf32 = False  # no TF32: float32 as in matrix products
        # not warn_only: with it, the backward passes of attention would take algorithms that are not deterministic
        torch.use_deterministic_algorithms(cfg.deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if name == "cuda" and process.rank_and_size()[1] > 1:
        rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if rank >= gpus:
            raise ConfigError(f"torch sees {gpus} GPUs here; start at most as many processes, or set device=cpu")
        torch.cuda.set_device(rank)
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(name)


def keep_freed() -> None:
    """Make this process keep the memory that it frees, for reuse in the next step. Without glibc this does nothing.

    By default glibc returns large blocks to the system. The next step allocates new ones, which the kernel fills with
    zeros page by page when they are first touched: thousands of page faults in every step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # take all memory from the heap, and never shrink the heap
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)


def leave_compiler_out(out: bool) -> None:
    """Choose whether functions that torch never compiles are called without importing its compiler (two seconds).

    ``torch._disable_dynamo`` imports it at the first call of such a function, and stores in an attribute what it calls
    from then on. With ``out`` it is set here, to the function itself; otherwise, for compiled models, torch sets it.
    """
    optimiser = torch.optim.Optimizer
    hidden = (optimiser.add_param_group, optimiser.zero_grad, optimiser.state_dict, optimiser.load_state_dict)
    for method in (*hidden, recurrences.sequence):
        function = inspect.unwrap(method)
        if out:
            vars(function).setdefault("__dynamo_disable", function)
        else:
            vars(function).pop("__dynamo_disable", None)
