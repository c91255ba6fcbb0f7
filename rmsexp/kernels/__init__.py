"""The fused forms of norms and recurrences: C++ on CPU, Triton on CUDA, registered as operators ``torch.ops.rmsexp``.

``build.load`` builds what is needed; the functions here may be called once it has said that the operators are there.
"""

from rmsexp.kernels.build import load
from rmsexp.kernels.forms import Form, Kind
from rmsexp.kernels.norms import normalise
from rmsexp.kernels.recurrences import decoder, gru, lstm

__all__ = ["Form", "Kind", "decoder", "gru", "load", "lstm", "normalise"]
