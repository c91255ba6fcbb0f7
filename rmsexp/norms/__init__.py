"""Normalisation layers, and the options classes (:class:`Norm` and its subclasses) that create a model's layers."""

from rmsexp.norms.base import Linear, Norm, Normaliser, Site
from rmsexp.norms.batch import BN, BatchNorm, MeanOnlyBatchNorm
from rmsexp.norms.composed import ByRole, ModuleNorm
from rmsexp.norms.per_example import LN, LayerNorm, NonparametricLN
from rmsexp.norms.pointwise import Derf, DynamicErf, DynamicTanh, DyT
from rmsexp.norms.rms import L2, PRMS, RMS, L2Norm, RMSNorm
from rmsexp.norms.weight import WN, MeanOnlyBN, NoNorm, WeightNorm

__all__ = [
    "BN",
    "L2",
    "LN",
    "PRMS",
    "RMS",
    "WN",
    "BatchNorm",
    "ByRole",
    "Derf",
    "DyT",
    "DynamicErf",
    "DynamicTanh",
    "L2Norm",
    "LayerNorm",
    "Linear",
    "MeanOnlyBN",
    "MeanOnlyBatchNorm",
    "ModuleNorm",
    "NoNorm",
    "NonparametricLN",
    "Norm",
    "Normaliser",
    "RMSNorm",
    "Site",
    "WeightNorm",
]
