"""Forms of norms, random tensors with gaps in memory, and the norm by its formula, for tests of the Triton kernels."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from helpers.interpreter import INTERPRETED, ON_GPU
from rmsexp.norms.kernels.norms import Kind

RUNS = INTERPRETED or ON_GPU  # whether this process can run the kernels
DEVICE = "cuda" if ON_GPU else "cpu"
EPS = 1e-3  # large, so that it matters whether eps is inside or outside the root


class Form(NamedTuple):
    kind: int
    share: float = 1.0  # share of the units that enter the statistic
    inside: bool = True  # whether eps is inside the root

    def units(self, n: int) -> int:
        """Return how many of ``n`` units enter the statistic."""
        return max(1, round(self.share * n))


class Case(NamedTuple):
    form: Form
    dtype: torch.dtype = torch.float64


POINTWISE: dict[int, Callable[[Tensor], Tensor]] = {Kind.TANH: torch.tanh, Kind.ERF: torch.erf, Kind.NONE: torch.clone}
FORMS = [
    Form(Kind.NONE),
    Form(Kind.RMS),
    Form(Kind.RMS, 0.4),
    Form(Kind.RMS, 0.4, inside=False),
    Form(Kind.LAYER),
    Form(Kind.EUCLID, 0.4),
    Form(Kind.EUCLID, inside=False),
]
# together, these two reach every branch of the kernels except those for Kind.NONE and Kind.EUCLID
PARTIAL, LAYER = Case(FORMS[3]), Case(FORMS[4])
TANH, ERF = Case(Form(Kind.TANH)), Case(Form(Kind.ERF))
SINGLE = [case._replace(dtype=torch.float32) for case in (PARTIAL, LAYER)]
ALL_CASES = [*map(Case, FORMS), *SINGLE, TANH, ERF]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def name_of(value: object) -> str:
    return "-".join(map(name_of, value)) if isinstance(value, tuple) else str(value)


def normalised(a: Tensor, form: Form) -> Tensor:
    """Return ``a``, normalised over its last axis; for a pointwise function, its value."""
    if form.kind in POINTWISE:
        return POINTWISE[form.kind](a)
    if form.kind == Kind.LAYER:
        a = a - a.mean(-1, keepdim=True)
    k = form.units(a.shape[-1])
    mean_square = a[..., :k].square().sum(-1, keepdim=True) / (1 if form.kind == Kind.EUCLID else k)
    return a / ((mean_square + EPS).sqrt() if form.inside else mean_square.sqrt() + EPS)


def norm_of(a: Tensor, affine: Tensor, form: Form) -> Tensor:
    """Return ``normalised(a) * gain + shift``, with gain and shift the rows of ``affine``."""
    return normalised(a, form) * affine[0] + affine[1]


class Draws:
    """Draws normal random tensors of one dtype; every instance starts from the same seed."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.generator = dtype, torch.Generator("cpu").manual_seed(0)
        self._gaps: list[tuple[Tensor, int]] = []

    def __call__(self, *shape: int) -> Tensor:
        values = torch.randn(shape, generator=self.generator, dtype=torch.float64, device="cpu")
        return values.to(DEVICE, self.dtype)

    def matrix(self, *shape: int) -> Tensor:
        """Draw a tensor whose entries along the first axis are separated in memory by three NaN.

        The bits of these NaN are the tensor's own, so that NaN from the gaps of another tensor are seen, too.
        """
        values = self(*shape)
        bits, first = {8: (torch.int64, 0x7FF8 << 48), 4: (torch.int32, 0x7FC0 << 16)}[self.dtype.itemsize]
        number = first + len(self._gaps)
        with_gaps = torch.full((shape[0], values[0].numel() + 3), number, dtype=bits, device=DEVICE).view(self.dtype)
        self._gaps.append((with_gaps[:, -3:].view(bits), number))
        return with_gaps[:, :-3].unflatten(1, shape[1:]).copy_(values)

    def assert_gaps_are_untouched(self) -> None:
        """Assert that nothing was written between the entries of the matrices."""
        assert all((gap == number).all() for gap, number in self._gaps)


def leaves(*tensors: Tensor) -> list[Tensor]:
    """Return exact copies of the tensors in float64, as leaves of the reference's autograd graph."""
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def assert_close(actual: Tensor, reference: Tensor, tolerance: float | None = None) -> None:
    tolerance = TOLERANCE[actual.dtype] if tolerance is None else tolerance
    torch.testing.assert_close(actual.double(), reference.detach(), rtol=tolerance, atol=tolerance)
