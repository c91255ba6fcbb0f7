"""The operators of ``rmsexp`` on CUDA, as Triton kernels.

Experimental: no GPU has run them yet. The tests run them in Triton's interpreter on CPU and compile them for sm_80.

The kernels are deterministic. They compute statistics and sums in float32, or in float64 for float64 input.
"""

from torch.library import Library

from rmsexp.kernels.triton.attention import attention_backward, attention_forward
from rmsexp.kernels.triton.gru import gru_gates_backward, gru_gates_forward
from rmsexp.kernels.triton.lstm import lstm_gates_backward, lstm_gates_forward
from rmsexp.kernels.triton.norms import normalise_backward, normalise_forward

OPERATORS = (
    normalise_forward,
    normalise_backward,
    gru_gates_forward,
    gru_gates_backward,
    lstm_gates_forward,
    lstm_gates_backward,
    attention_forward,
    attention_backward,
)


_libraries: list[Library] = []  # an operator loses its implementation when the Library object is deleted


def register(key: str) -> None:
    """Register the kernels under a dispatch key, such as "CUDA", of the operators with their names.

    The operators must have been defined, which :func:`rmsexp.kernels.load` does.
    """
    library = Library("rmsexp", "IMPL", key)
    for operator in OPERATORS:
        library.impl(operator.__name__, operator)
    _libraries.append(library)
