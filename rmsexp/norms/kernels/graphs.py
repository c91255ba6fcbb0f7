"""The operators of recurrences on a GPU, as CUDA graphs: one call starts the kernels of many time steps.

Python needs longer to start the kernels of a time step than a GPU to compute them: on an NVIDIA H200, a fused GRU took
0.2 ms for each step of its forward and backward pass (``results/reference/nvidia-h200/bench/recurrences0``).
"""

import threading
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from rmsexp.system.command_line import brief, inform

Tensors = Sequence[Tensor | None]
Function = Callable[[Tensors], list[Tensor]]
KEPT = 32  # graphs; each has copies of its arguments and results
_graphs: dict[tuple[Any, ...], Function | None] = {}  # None: called once with such tensors
_lock = threading.Lock()  # of the graphs' own tensors


class Graph:
    """A CUDA graph of the kernels that a function starts, which can be replayed for other tensors of the same shapes.

    The function has no other effects, and never waits for the GPU.
    """

    def __init__(self, function: Function, tensors: Tensors) -> None:
        with torch.inference_mode(False), torch.no_grad():  # else training could not write to tensors of inference mode
            self.tensors = [None if tensor is None else tensor.clone() for tensor in tensors]
            self.graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # the default one may be of another GPU
            # other threads may call CUDA meanwhile
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self.results = function(self.tensors)

    def __call__(self, tensors: Tensors) -> list[Tensor]:
        for own, tensor in zip(self.tensors, tensors, strict=True):
            if own is not None and tensor is not None:
                own.copy_(tensor)
        self.graph.replay()
        return [result.clone() for result in self.results]


def call(name: str, lists: Sequence[Tensors], *options: Any) -> list[Tensor]:
    """Return the results of the operator ``torch.ops.rmsexp.<name>(*lists, *options)``.

    On a GPU, the second call with tensors of these shapes captures a CUDA graph, which it and later calls replay.
    """
    operator, flat = getattr(torch.ops.rmsexp, name), [*chain(*lists)]
    first = next(tensor for tensor in flat if tensor is not None)
    if (stream := _stream(first)) is None:
        return list(operator(*lists, *options))

    lengths = tuple(map(len, lists))

    def function(tensors: Tensors) -> list[Tensor]:
        left = iter(tensors)
        return list(operator(*([next(left) for _ in range(length)] for length in lengths), *options))

    described = (None if tensor is None else (tensor.shape, tensor.dtype) for tensor in flat)
    # a member of torch 2.9 or later, which also knows what its older functions set
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None) or torch.get_float32_matmul_precision()
    key = (name, str(options), stream, precision, lengths, *described)
    with _lock, torch.cuda.device_of(first):
        if key not in _graphs:
            if len(_graphs) >= KEPT:
                _graphs.pop(next(iter(_graphs)))
            _graphs[key] = None
            return function(flat)  # which also compiles the kernels
        captured = _graphs.pop(key)
        if captured is None:
            try:
                captured = Graph(function, flat)
            except RuntimeError as error:  # such as too little memory
                inform(brief(f"notice: {name} runs without a CUDA graph, so it is slower ({error})"))
                captured = function
        _graphs[key] = captured  # the last one is that which was used last
        return captured(flat)


def _stream(tensor: Tensor) -> object:
    """Return the stream on which a GPU computes with a tensor; None on CPU, and while a caller captures a graph."""
    if not tensor.is_cuda or torch.cuda.is_current_stream_capturing():
        return None
    return torch.cuda.current_stream(tensor.device)
