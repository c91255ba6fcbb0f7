"""What norm layers of this package are compared with: layers of other libraries, and compiled layers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Library(NamedTuple):
    """A layer of another library. ``package``: its name in the package index; ``layer``: makes it, for n features."""

    package: str
    layer: Callable[[int], nn.Module]


def _imported(module: str, name: str, **options: object) -> Callable[[int], nn.Module]:
    """Return a function of the number of features that imports the class ``name`` and makes a layer."""
    return lambda features: getattr(importlib.import_module(module), name)(features, **options)


class QuackAddition(nn.Module):
    """QuACK's residual sum and RMSNorm of it in one operator: (x, addend) -> (norm, sum)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.rmsnorm = importlib.import_module("quack.rmsnorm").rmsnorm
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor, addend: Tensor) -> tuple[Tensor, Tensor]:
        y, total = self.rmsnorm(x, self.weight, residual=addend, prenorm=True)
        return y, total


# All run on CUDA only. in_place=False: by default, the backward pass of Liger's RMSNorm writes into the gradient of the
# output, which all timed layers share.
LAYERS = {
    "Liger LayerNorm": Library("liger-kernel", _imported("liger_kernel.transformers.layer_norm", "LigerLayerNorm")),
    "Liger RMSNorm": Library(
        "liger-kernel", _imported("liger_kernel.transformers.rms_norm", "LigerRMSNorm", in_place=False)
    ),
    "QuACK RMSNorm": Library("quack-kernels", _imported("quack.rmsnorm", "QuackRMSNorm")),
    "apex LayerNorm": Library("apex", _imported("apex.normalization", "FusedLayerNorm")),
    "apex RMSNorm": Library("apex", _imported("apex.normalization", "FusedRMSNorm")),
}
ADDITIONS = {  # residual sum and its norm in one operator: (x, addend) -> (norm, sum)
    "Liger RMSNorm, fused": Library(
        "liger-kernel",
        _imported("liger_kernel.transformers.fused_add_rms_norm", "LigerFusedAddRMSNorm", in_place=False),
    ),
    "QuACK RMSNorm, fused": Library("quack-kernels", QuackAddition),
}
COMPILED = ("nn.LayerNorm", "nn.RMSNorm", "ln eager", "rms eager")


def of_libraries(
    libraries: Mapping[str, Library], inputs: tuple[Tensor, ...], gradient: Tensor, report: Callable[[str], None]
) -> dict[str, nn.Module]:
    """Return the layers, by name, of the libraries that are installed.

    Each layer runs once on ``inputs``, forward and backward, with ``gradient`` as the gradient of each output. A layer
    that raises an error, or writes into the gradient, is reported and left out.
    """
    layers, shape = {}, "x".join(map(str, gradient.shape))
    for name, library in libraries.items():
        version = _version(library.package)
        if version is None:
            continue
        not_timed = f"{name} of {library.package} {version} is not timed at {shape}"
        try:
            layer = library.layer(gradient.shape[-1]).to(gradient.device, gradient.dtype)
            if _writes_into_gradient(layer, inputs, gradient):
                report(f"{not_timed}: its backward pass writes into the gradient of its output")
            else:
                layers[name] = layer
        except Exception as error:  # an error of another library must not end the benchmark
            report(f"{not_timed}: {type(error).__name__}: {' '.join(str(error).split()):.200}")
    return layers


def _writes_into_gradient(layer: nn.Module, inputs: tuple[Tensor, ...], gradient: Tensor) -> bool:
    """Return whether a backward pass of the layer changes the gradient of its output, of which it gets a copy."""
    output = layer(*(x.detach().requires_grad_() for x in inputs))
    outputs, sent = output if isinstance(output, tuple) else (output,), gradient.clone()
    torch.autograd.backward(outputs, [sent] * len(outputs))
    layer.zero_grad()
    return not torch.equal(sent, gradient)


def versions(layers: Iterable[str]) -> dict[str, str]:
    """Return the version of each library that has one of the layers with these names, by package."""
    libraries = LAYERS | ADDITIONS
    packages = {libraries[name].package for name in layers if name in libraries}
    return {package: version for package in packages if (version := _version(package))}


def _version(package: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


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
