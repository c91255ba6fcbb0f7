"""A hash of tensors, to compare them, and torch's checks of operators."""

import hashlib
from typing import Any

import torch
from torch import Tensor


def digest(*tensors: Tensor) -> str:
    """Return a hash of the tensors' values in logical order, whatever their memory format."""
    return hashlib.sha256(b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()


def opcheck(operator: Any, arguments: tuple[Any, ...], *, traced: bool) -> None:
    """Test an operator's schema, and the shapes and strides of its fake results.

    ``traced``: whether its autograd registration and its tracing are tested, too, which take most of the time and do
    not depend on the arguments' strides.
    """
    more = ("test_autograd_registration", "test_aot_dispatch_dynamic") if traced else ()
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor", *more))
