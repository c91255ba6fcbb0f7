"""The operators of ``rmsexp`` on CUDA, as Triton kernels: deterministic, with statistics and sums in float32 (in
float64 for float64)."""

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


_libraries: list[Library] = []  # what a library implements lasts as long as it lives


def register(key: str) -> None:
    """Makes them the implementation, for a dispatch key, of the operators of their names, which must be defined."""
    library = Library("rmsexp", "IMPL", key)
    for operator in OPERATORS:
        library.impl(operator.__name__, operator)
    _libraries.append(library)
