"""Cases and tolerances of other projects' tests of such kernels, restated for this project's kernels.

- RMSNorm: quack (Dao-AILab/quack, tests/test_rmsnorm.py) and Liger (linkedin/Liger-Kernel,
  test/transformers/test_rms_norm.py): shapes, dtypes, strides and tolerances. Their tests compare with a composed form
  that computes in float32, as the reference here does. Not restated: residual inputs, a gain offset, zoneout, and gains
  of shape (heads, units), which this project's norms do not have.
- Recurrences: haste (lmnt-com/haste, validation/pytorch.py and frameworks/pytorch/layer_norm_lstm.py): equality with
  torch's GRU and LSTM, and the layer-normalised LSTM. haste's layer-normalised GRU is another one: it normalises the
  two gates and the candidate together.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers.cases import some
from helpers.sites import draw
from torch import Tensor, nn

from rmsexp.norms import kernels
from rmsexp.norms.kernels import Form, Kind, StepForm

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]


# --- RMSNorm

EPS = 1e-6
TOLERANCE = {torch.bfloat16: 1e-1, torch.float16: 1e-2, torch.float32: 1e-4}  # absolute, of quack
RELATIVE = 1e-3
Optional = Tensor | None


def fused(x: Tensor, gain: Optional, shift: Optional = None) -> Tensor:
    return kernels.normalise(x, gain, shift, Form(Kind.RMS, x.shape[-1], eps=EPS), maps=False)


def reference(x: Tensor, gain: Optional, shift: Optional = None) -> Tensor:
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + EPS)
    y = y if gain is None else y * gain.float()
    return (y if shift is None else y + shift.float()).to(x.dtype)


def drawn(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return draw(*shape, seed=seed).to(dtype)


def assert_agree(x: Tensor, parameters: list[Tensor], sent: Tensor | None = None) -> None:
    """Assert that results and gradients are within quack's tolerances.

    Args:
        parameters: The gain, or gain and shift, or neither.
        sent: Gradient of the result; None for that of the result's sum, all of whose elements share memory.
    """
    results = []
    for function in (fused, reference):
        leaves = [tensor.detach().requires_grad_() for tensor in (x, *parameters)]
        y = function(leaves[0], *(leaves[1:] or [None]))
        gradients = torch.autograd.grad(y, leaves, sent) if sent is not None else torch.autograd.grad(y.sum(), leaves)
        results.append([y, *gradients])
    (y, dx, *sums), (y_reference, dx_reference, *sum_references) = results
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    for result, expected in ((y, y_reference), (dx, dx_reference)):
        torch.testing.assert_close(result, expected, atol=TOLERANCE[x.dtype], rtol=RELATIVE)
    rows = x[..., 0].numel()
    for result, expected in zip(sums, sum_references, strict=True):
        largest = float(expected.abs().max())
        in_half = 2 * torch.finfo(expected.dtype).eps * largest
        tolerance = 5e-6 * rows**0.5 if expected.dtype == torch.float32 else in_half
        torch.testing.assert_close(result, expected, atol=tolerance, rtol=RELATIVE)


SHAPES = [(199, 256), (1, 192), (199, 760), (37, 1128), (37, 4096), (1, 131072), (2, 2, 8), (9, 7, 41), (5, 123, 123)]
PAIRS = [(torch.bfloat16, torch.bfloat16), (torch.float32, None), (torch.float16, torch.float32)]
CASES = list(itertools.product(SHAPES, TOLERANCE, (torch.bfloat16, torch.float32, None)))


@pytest.mark.parametrize(
    ("shape", "dtype", "gain_dtype"),
    some(CASES, [case for case in CASES if case[0] == SHAPES[0] or case[1:] in PAIRS]),
    ids=str,
)
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype, gain_dtype: torch.dtype | None) -> None:
    gains = [] if gain_dtype is None else [drawn(shape[-1], seed=2, dtype=gain_dtype)]
    assert_agree(drawn(*shape, seed=1, dtype=dtype), gains, drawn(*shape, seed=3, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_gradient_whose_elements_share_memory(dtype: torch.dtype) -> None:
    assert_agree(drawn(2, 1024, 256, seed=1, dtype=dtype), [torch.ones(256)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_first_512_of_576_units(dtype: torch.dtype) -> None:
    x = drawn(8, 64, 576, seed=1, dtype=dtype)[:, :, :512]
    assert_agree(x, [drawn(512, seed=2, dtype=torch.float32)], drawn(8, 64, 512, seed=3, dtype=dtype))


# --- recurrences

BATCH, TIME, INPUT, HIDDEN = 32, 50, 128, 256  # haste's sizes, with a fifth of its time steps


def without_norm(gates: int) -> tuple[Tensor, StepForm]:
    """Return gains of 1 and shifts of 0, and the form of a step without norms."""
    affine = torch.tensor([1.0, 0.0]).reshape(1, 2, 1).repeat(2, 1, gates * HIDDEN)
    return affine, StepForm(Kind.NONE, 1, 1, True)


def assert_equal_to_torch(result: Tensor, native: nn.Module, x: Tensor) -> None:
    """Assert that results, and gradients of their sum with respect to the input, equal those of a layer of torch."""
    expected, _ = native(x)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)
    gradients = [torch.autograd.grad(states.sum(), x, retain_graph=True)[0] for states in (result, expected)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_a_gru_without_norm_is_that_of_torch() -> None:
    torch.manual_seed(0)
    native, x = nn.GRU(INPUT, HIDDEN, batch_first=True), torch.rand(BATCH, TIME, INPUT).requires_grad_()
    products = nn.functional.linear(x, native.weight_ih_l0, native.bias_ih_l0)
    affine, form = without_norm(3)
    state, weight, bias = torch.zeros(1, HIDDEN), native.weight_hh_l0, native.bias_hh_l0
    result = kernels.gru(products, state, weight, bias, affine, None, form, 0.0, reverse=False)
    assert_equal_to_torch(result, native, x)


def test_an_lstm_without_norm_is_that_of_torch() -> None:
    """The kernels' LSTM has the output gate before the candidate; torch has it after the candidate."""
    torch.manual_seed(0)
    native, x = nn.LSTM(INPUT, HIDDEN, batch_first=True), torch.rand(BATCH, TIME, INPUT).requires_grad_()
    order = torch.arange(4 * HIDDEN).reshape(4, HIDDEN)[[0, 1, 3, 2]].flatten()
    bias = (native.bias_ih_l0 + native.bias_hh_l0)[order]
    products, state = nn.functional.linear(x, native.weight_ih_l0[order], bias), torch.zeros(1, HIDDEN)
    (affine, form), weight = without_norm(4), native.weight_hh_l0[order]
    cell_affine = affine[0, :, :HIDDEN]
    result = kernels.lstm(products, state, state, weight, affine, cell_affine, None, form, 0.0, reverse=False)
    assert_equal_to_torch(result, native, x)


def test_a_layer_normalised_lstm_has_hastes_formula() -> None:
    """``[i, g, f, o] = LN(W x) + LN(U h) + b`` and ``h' = o * tanh(LN(c'))``, in haste's order of the gates."""
    hidden, layer_norm = 24, nn.functional.layer_norm
    x, kernel, recurrent = draw(3, 6, 8), draw(8, 4 * hidden, seed=1), draw(hidden, 4 * hidden, seed=2)
    gamma, bias, gamma_h, beta_h = (draw(*s, seed=3) for s in ((2, 4 * hidden), (4 * hidden,), (hidden,), (hidden,)))
    h = c = torch.zeros(3, hidden, dtype=torch.float64)
    expected = []
    for t in range(x.shape[1]):
        sums = layer_norm(x[:, t] @ kernel, (4 * hidden,), gamma[0]) + bias
        i, g, f, o = (sums + layer_norm(h @ recurrent, (4 * hidden,), gamma[1])).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * layer_norm(c, (hidden,), gamma_h, beta_h).tanh()
        expected.append(h)

    order = torch.arange(4 * hidden).reshape(4, hidden)[[0, 2, 3, 1]].flatten()  # i, f, o, g
    no_shift = torch.zeros_like(bias)
    affine = torch.stack([gamma[0], bias, gamma[1], no_shift])[:, order].reshape(2, 2, -1)
    zeros, form = torch.zeros(1, hidden, dtype=torch.float64), StepForm(Kind.LAYER, 4 * hidden, hidden, True)
    cell_affine, weight = torch.stack([gamma_h, beta_h]), recurrent.t()[order]
    result = kernels.lstm(
        (x @ kernel)[..., order], zeros, zeros, weight, affine, cell_affine, None, form, 1e-5, reverse=False
    )
    torch.testing.assert_close(result, torch.stack(expected, 1), atol=1e-10, rtol=1e-10)
