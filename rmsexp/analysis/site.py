"""One normalised linear map of a model, alone and in double precision, as section 4 of the paper looks at it."""

from __future__ import annotations

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from rmsexp import config
from rmsexp.models import init
from rmsexp.norms import Linear, Norm
from rmsexp.train.randomness import stream

SEED = 0
N_IN, N_OUT, EXAMPLES = 48, 128, 32
NORMS = ("none", "ln", "rms", "prms", "bn", "wn")  # the paper's
STANDARD_NORMAL = init.normal(1.0)
SPREAD = 0.3  # the standard deviation of parameters around the values that a model starts them at


def norm(name: str) -> Norm:
    """That of ``configs/norm/<name>.yaml`` with eps = 0: the paper's statements are of norms without it."""
    content = OmegaConf.load(config.CONFIGS / "norm" / f"{name}.yaml")
    assert isinstance(content, DictConfig)
    if "eps" in content:
        content.eps = 0.0
    made: Norm = config.norm_from(content)
    return made


def site(norm: Norm, *stream_name: str | int) -> Linear:
    """``norm(W x)`` with gain and shift where the norm has them; all parameters are drawn, weights around 0."""
    made = norm.linear("site", N_IN, N_OUT, bias=False, shift=True).double()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            drawn = draw((*parameter.shape,), *stream_name, name)
            parameter.copy_(parameter.nan_to_num(0.0) + SPREAD * drawn)
    return made


def draw(shape: tuple[int, ...], *stream_name: str | int, kind: init.Initialiser = STANDARD_NORMAL) -> Tensor:
    """Values of one stream, in double precision: standard normal, or of another ``kind``."""
    values = torch.empty(shape, dtype=torch.float64)
    kind(values, stream(SEED, "analysis", *stream_name))
    return values
