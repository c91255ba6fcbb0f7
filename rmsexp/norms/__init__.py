"""Normalisation layers, and the options classes (:class:`Norm` and its subclasses) that create a model's layers."""

from rmsexp.norms.base import Linear as Linear
from rmsexp.norms.base import Norm as Norm
from rmsexp.norms.base import Normaliser as Normaliser
from rmsexp.norms.base import Site as Site
from rmsexp.norms.batch import BN as BN
from rmsexp.norms.batch import BatchNorm as BatchNorm
from rmsexp.norms.batch import MeanOnlyBatchNorm as MeanOnlyBatchNorm
from rmsexp.norms.composed import ByRole as ByRole
from rmsexp.norms.composed import ModuleNorm as ModuleNorm
from rmsexp.norms.per_example import LN as LN
from rmsexp.norms.per_example import LayerNorm as LayerNorm
from rmsexp.norms.per_example import NonparametricLN as NonparametricLN
from rmsexp.norms.pointwise import Derf as Derf
from rmsexp.norms.pointwise import DynamicErf as DynamicErf
from rmsexp.norms.pointwise import DynamicTanh as DynamicTanh
from rmsexp.norms.pointwise import DyT as DyT
from rmsexp.norms.rms import L2 as L2
from rmsexp.norms.rms import PRMS as PRMS
from rmsexp.norms.rms import RMS as RMS
from rmsexp.norms.rms import L2Norm as L2Norm
from rmsexp.norms.rms import RMSNorm as RMSNorm
from rmsexp.norms.weight import WN as WN
from rmsexp.norms.weight import MeanOnlyBN as MeanOnlyBN
from rmsexp.norms.weight import NoNorm as NoNorm
from rmsexp.norms.weight import WeightNorm as WeightNorm
