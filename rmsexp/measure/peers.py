"""What norm layers of this package are compared with: layers of other libraries, and compiled layers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

# Module and class of each layer; all run on CUDA only, and their first argument is the number of features.
LIBRARIES = {
    "Liger LayerNorm": ("liger_kernel.transformers.layer_norm", "LigerLayerNorm"),
    "Liger RMSNorm": ("liger_kernel.transformers.rms_norm", "LigerRMSNorm"),
    "QuACK RMSNorm": ("quack.rmsnorm", "QuackRMSNorm"),
    "apex LayerNorm": ("apex.normalization", "FusedLayerNorm"),
    "apex RMSNorm": ("apex.normalization", "FusedRMSNorm"),
}
COMPILED = ("nn.LayerNorm", "nn.RMSNorm", "ln eager", "rms eager")


def of_libraries(features: int, device: torch.device) -> dict[str, nn.Module]:
    """Return the layers of the libraries that are installed, by name; none on CPU."""
    layers = {}
    for name, (module, layer) in LIBRARIES.items() if device.type == "cuda" else ():
        try:
            layers[name] = getattr(importlib.import_module(module), layer)(features)
        except ImportError:
            continue
    return layers


def compiled(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """Return the functions or modules named in ``COMPILED``, compiled by ``torch.compile``, by their new names.

    Torch compiles the same lines of Python at most ``torch._dynamo.config.recompile_limit`` times, and then runs them
    uncompiled, or with ``fullgraph`` raises an error. So what was compiled for other shapes is dropped first.
    """
    torch._dynamo.reset()
    return {f"{name}, compiled": torch.compile(functions[name], dynamic=False, fullgraph=True) for name in COMPILED}


def operators(call: Callable[[], object], device: torch.device) -> list[str]:
    """Return the names of the operators and, on CUDA, of the kernels that a call runs, in the order of first use.

    They tell which of its implementations torch's dispatcher used.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        call()
    events = sorted(profile.events(), key=lambda event: event.time_range.start)
    return list(dict.fromkeys(event.name for event in events))
