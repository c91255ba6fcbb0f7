"""A single normalised linear map in double precision, as section 4 of the paper analyses it."""

import dataclasses
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rmsexp import config
from rmsexp.models import init
from rmsexp.norms import Linear, Norm
from rmsexp.train.randomness import stream

SEED = 0
N_IN, N_OUT, EXAMPLES = 48, 128, 32
NORMS = ("none", "ln", "rms", "prms", "bn", "wn")  # the norms of the paper's Table 1, and none
GAINLESS = "rms+gain=false"
STANDARD_NORMAL = init.normal(1.0)
SPREAD = 0.3  # standard deviation of the noise that is added to a layer's initial parameters


@cache
def norm(series: str) -> Norm:
    """Return the norm of a series, such as "rms" or "rms+gain=false", with eps = 0, as in the paper's section 4."""
    # a task without options of its own for norms
    norm: Norm = config.job(["task=transformer", *config.norm_words(series)]).norm
    changes: dict[str, Any] = {"eps": 0.0} if hasattr(norm, "eps") else {}
    return dataclasses.replace(norm, **changes)


def site(norm: Norm, *stream_name: str | int) -> Linear:
    """Return the layer ``norm(W x)`` with random parameters: W, and gain and shift if the norm has them.

    ``stream_name``: the stream of random numbers for the parameters.
    """
    layer = norm.linear("site", N_IN, N_OUT, bias=False, shift=True).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            noise = draw((*parameter.shape,), *stream_name, name)
            parameter.copy_(parameter.nan_to_num(0.0) + SPREAD * noise)
    return layer


def draw(shape: tuple[int, ...], *stream_name: str | int, kind: init.Initialiser = STANDARD_NORMAL) -> Tensor:
    """Return random values in double precision from the stream of this name, drawn by ``kind``."""
    values = torch.empty(shape, dtype=torch.float64)
    kind(values, stream(SEED, "analysis", *stream_name))
    return values
