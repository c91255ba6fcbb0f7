"""Pairs of modules, one with the eager norm and one with its fused form, and how close their results must be."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from hypothesis import settings
from torch import Tensor, nn

from rmsexp import norms

from .norm_layers import TOLERANCE
from .sites import draw, fill

NORMS: dict[str, norms.Norm] = {  # eps is large, so that it matters whether it is inside or outside the root
    "none": norms.NoNorm(name="none"),
    "wn": norms.WN(name="wn", eps=1e-2),
    "ln": norms.LN(name="ln", eps=1e-2),
    "nonparametric_ln": norms.NonparametricLN(name="nonparametric_ln", eps=1e-2),
    "rms": norms.RMS(name="rms", eps=1e-2),
    "rms, outside, with bias": norms.RMS(name="rms", eps=1e-2, eps_inside=False, bias=True),
    "rms, no gain": norms.RMS(name="rms", eps=1e-2, gain=False),
    "rms, weight offset": norms.RMS(name="rms", eps=1e-2, weight_offset=True),
    "prms": norms.PRMS(name="prms", p=0.3, eps=1e-2),
    "l2": norms.L2(name="l2", eps=1e-2),
}
PROPERTY = settings(derandomize=True, deadline=None, max_examples=80)
Pair = tuple[Any, Any]


def pair(build: Callable[[norms.Norm], nn.Module], name: str, dtype: torch.dtype = torch.float64) -> Pair:
    """Return an eager and a fused module with equal parameters."""
    eager, fused = (fill(build(replace(NORMS[name], impl=impl))).to(dtype) for impl in ("eager", "fused"))
    return eager, fused


def gradients(result: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of a weighted sum of ``result``, with zeros for leaves on which it does not depend."""
    weights = draw(*result.shape, seed=30).to(result)
    return list(torch.autograd.grad((result * weights).sum(), leaves, allow_unused=True, materialize_grads=True))


def close(results: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Assert equality within the dtype's tolerance times the tensor's largest absolute value, or times 1 if larger."""
    for result, reference in zip(results, expected, strict=True):
        largest = max(1.0, float(reference.detach().abs().max())) if reference.numel() else 1.0
        torch.testing.assert_close(result, reference, rtol=0, atol=TOLERANCE[reference.dtype] * largest)
