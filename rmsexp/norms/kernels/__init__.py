"""Fused norms and recurrences: C++ on CPU, Triton kernels on CUDA, registered as operators ``torch.ops.rmsexp``.

Call :func:`load` first. If it returns True, the other functions can be called.
"""

from rmsexp.norms.kernels.build import load
from rmsexp.norms.kernels.norms import Form, Kind, StepForm
from rmsexp.norms.kernels.recurrences import sequence

__all__ = ["Form", "Kind", "StepForm", "load", "sequence"]
