"""The CUDA implementations of the operators for norms and for single time steps, as Triton kernels.

The tests run them in Triton's interpreter on CPU and, if there is one, on a GPU, and compile them for sm_80.

The kernels are deterministic. They compute statistics and sums in float32, or in float64 for float64 input.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from rmsexp.norms.kernels.triton.attention import attention_backward, attention_forward
from rmsexp.norms.kernels.triton.norms import normalise_backward, normalise_forward
from rmsexp.norms.kernels.triton.steps import (
    gru_gates_backward,
    gru_gates_forward,
    lstm_gates_backward,
    lstm_gates_forward,
)

OPERATORS: dict[str, Callable[..., Any]] = {
    "normalise_forward": normalise_forward,
    "normalise_backward": normalise_backward,
    "gru_gates_forward": gru_gates_forward,
    "gru_gates_backward": gru_gates_backward,
    "lstm_gates_forward": lstm_gates_forward,
    "lstm_gates_backward": lstm_gates_backward,
    "attention_forward": attention_forward,
    "attention_backward": attention_backward,
}

_libraries: list[Library] = []  # kept, because deleting a Library removes the implementations that it registered


def register(key: str) -> None:
    """Register ``OPERATORS`` for a dispatch key such as "CUDA", after :func:`rmsexp.norms.kernels.load`."""
    library = Library("rmsexp", "IMPL", key)
    for name, operator in OPERATORS.items():
        library.impl(name, partial(_run_on_the_device_of_its_tensors, operator))
    _libraries.append(library)


def _run_on_the_device_of_its_tensors(operator: Callable[..., Any], *arguments: Any) -> Any:
    """Run the operator with its tensors' GPU as the current device: there Triton launches kernels."""
    with torch.cuda.device_of(next(each for each in arguments if isinstance(each, Tensor))):
        return operator(*arguments)
