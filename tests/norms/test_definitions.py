"""Every norm against an independent definition: torch's modules, published code and loops."""

import math
from typing import Any

import pytest
import torch
from helpers.sites import draw as draw_float64
from helpers.sites import fill
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from rmsexp import norms

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return draw_float64(*shape, seed=seed).to(dtype)


def perturb(module: nn.Module) -> None:
    """Add noise to all parameters, so that a wrong gain or shift changes the result."""
    for i, parameter in enumerate(module.parameters()):
        parameter.data += 0.3 * draw(*parameter.shape, seed=1 + i, dtype=parameter.dtype)


def output_and_gradient(layer: nn.Module, x: Tensor, dy: Tensor | None = None) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = layer(x)
    y.backward(torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape) if dy is None else dy)
    return y.detach(), x.grad


# --- torch's own modules


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("affine", [True, False], ids=["gain", "no-gain"])
@pytest.mark.parametrize("eps", [1e-5, None])
@pytest.mark.parametrize("shape", [7, (3, 4), [2, 3, 4]], ids=str)
def test_rmsnorm_equals_torch_rmsnorm(
    shape: int | tuple[int, ...] | list[int], eps: float | None, affine: bool, dtype: torch.dtype
) -> None:
    layer = norms.RMSNorm(shape, eps, affine, dtype=dtype)
    reference = nn.RMSNorm(shape, eps, affine, dtype=dtype)
    perturb(reference)
    layer.load_state_dict(reference.state_dict())
    assert set(layer.state_dict()) == ({"weight"} if affine else set())
    x = 0.03 * draw(5, 2, *layer.normalized_shape, dtype=dtype)  # small, so that the default eps of a dtype matters
    for actual, expected in zip(output_and_gradient(layer, x), output_and_gradient(reference, x), strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("affine", "bias"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("shape", [7, (3, 4)], ids=str)
def test_layernorm_equals_torch_layernorm(
    shape: int | tuple[int, ...], affine: bool, bias: bool, dtype: torch.dtype
) -> None:
    layer = norms.LayerNorm(shape, 1e-3, affine, bias, dtype=dtype)
    reference = nn.LayerNorm(shape, 1e-3, affine, bias, dtype=dtype)
    perturb(reference)
    layer.load_state_dict(reference.state_dict())
    assert set(layer.state_dict()) == set(reference.state_dict())
    x = 0.5 + draw(5, 2, *layer.normalized_shape, dtype=dtype)
    close = {torch.bfloat16: {"rtol": 2e-2, "atol": 3e-2}, torch.float16: {"rtol": 2e-3, "atol": 4e-3}}.get(dtype, {})
    for actual, expected in zip(output_and_gradient(layer, x), output_and_gradient(reference, x), strict=True):
        torch.testing.assert_close(actual, expected, **close)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weight_offset_is_the_formula_of_gemma(dtype: torch.dtype) -> None:
    layer = norms.RMSNorm(7, 1e-6, weight_offset=True, dtype=dtype)
    assert torch.equal(layer.weight, torch.zeros(7, dtype=dtype))
    torch.testing.assert_close(layer(x := draw(5, 7, dtype=dtype)), norms.RMSNorm(7, 1e-6, dtype=dtype)(x))
    perturb(layer)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    a, weight = x.to(wide), layer.weight.to(wide)  # 1 + weight is not rounded to the dtype of a half-precision weight
    expected = a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + weight)
    torch.testing.assert_close(layer(x), expected.to(dtype), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES[2:], ids=str)
@pytest.mark.parametrize("family", [norms.RMSNorm, norms.DynamicTanh, norms.DynamicErf])
def test_half_precision_keeps_statistics_and_parameters_in_float32(family: Any, dtype: torch.dtype) -> None:
    x = 300 * draw(4, 64, dtype=dtype)  # in float16 the squares would overflow
    layer = family(64)
    perturb(layer)
    y = layer(x)
    assert y.dtype == dtype
    assert torch.equal(y, layer(x.float()).to(dtype))


@pytest.mark.parametrize(("size", "torch_class"), [((12, 5), nn.BatchNorm1d), ((6, 5, 3, 4), nn.BatchNorm2d)])
def test_batchnorm_equals_torch_batchnorm(size: tuple[int, ...], torch_class: type[nn.BatchNorm1d]) -> None:
    maps, n, batches, momentum = len(size) == 4, size[0], 4, 0.1
    layer, reference = norms.BatchNorm(5, maps=maps).double(), torch_class(5, momentum=momentum).double()
    perturb(layer)
    reference.load_state_dict({"weight": layer.weight, "bias": layer.bias}, strict=False)
    for seed in range(batches):
        x = 2 + 3 * draw(*size, seed=seed)
        for actual, expected in zip(output_and_gradient(layer, x), output_and_gradient(reference, x), strict=True):
            torch.testing.assert_close(actual, expected)
    # For maps, torch's unbiased variance counts all N*H*W values, the layer's only the N examples. In both running
    # variances, the initial value 1 still has the weight `initial`.
    initial, values = (1 - momentum) ** batches, x.numel() // 5
    reference.running_var = initial + (reference.running_var - initial) * (values - 1) / values * n / (n - 1)
    torch.testing.assert_close(layer.running_mean[0], reference.running_mean)
    torch.testing.assert_close(layer.running_var[0], reference.running_var)
    layer.eval(), reference.eval()
    torch.testing.assert_close(layer(x), reference(x))


@pytest.mark.parametrize("maps", [False, True], ids=["linear", "conv"])
@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_weight_norm_equals_torch_weight_norm(maps: bool, eps: float) -> None:
    site = fill(norms.WN(name="wn", eps=eps).linear("a", 3, 4, kernel_size=3 if maps else None, padding=int(maps)))
    reference = (nn.Conv2d(3, 4, 3, padding=1) if maps else nn.Linear(3, 4)).double()
    reference = parametrizations.weight_norm(reference)
    originals = reference.parametrizations.weight
    originals.original0.data = site.reparametrisation.gain.data.view_as(originals.original0)
    originals.original1.data = site.weight.data
    reference.bias.data = site.bias.data
    x = draw(2, 3, 5, 5) if maps else draw(5, 3)
    close = {"rtol": 1e-4, "atol": 1e-4} if eps else {"rtol": 1e-12, "atol": 1e-12}
    for actual, expected in zip(output_and_gradient(site, x), output_and_gradient(reference, x), strict=True):
        torch.testing.assert_close(actual, expected, **close)
    if not eps:
        gradients = [site.reparametrisation.gain.grad.view_as(originals.original0), site.weight.grad]
        torch.testing.assert_close(gradients, [originals.original0.grad, originals.original1.grad], **close)
    squares = site.weight.square().flatten(1).sum(1)
    lengths = site.effective_weight().flatten(1).norm(dim=1)
    torch.testing.assert_close(lengths, site.reparametrisation.gain.abs() * (squares / (squares + eps)).sqrt())


@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_weight_norm_may_divide_by_its_gain(eps: float) -> None:
    site = fill(norms.WN(name="wn", eps=eps, inverse_gain=True).linear("a", 3, 4))
    lengths = (site.weight.square().sum(1, keepdim=True) + eps).sqrt()
    expected = site.weight / (lengths * site.reparametrisation.gain.unsqueeze(1))
    torch.testing.assert_close(site.effective_weight(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("size", "axes"), [((9, 4), 0), ((6, 3, 4), (0, 1)), ((6, 4, 2, 3), (0, 2, 3))])
def test_mean_only_batch_norm_equals_its_formula(size: tuple[int, ...], axes: int | tuple[int, ...]) -> None:
    maps = len(size) == 4
    layer = fill(norms.MeanOnlyBatchNorm(4, maps=maps))
    x, shift = 2 + draw(*size), layer.bias.detach().view(-1, *[1] * (2 * maps))
    torch.testing.assert_close(layer(x), x - x.mean(axes, keepdim=True) + shift)
    torch.testing.assert_close(layer.running_mean[0], 0.1 * x.mean(axes))
    mean = layer.running_mean[0].view_as(shift)
    torch.testing.assert_close(layer.eval()(x), x - mean + shift)


# --- pRMSNorm and the L2 norm

UNITS = [  # n, p, and the number of units in the statistic with ceil and floor
    *((n, 0.0625, k, k) for n, k in ((512, 32), (1024, 64), (2048, 128), (240, 15), (960, 60))),
    (36, 0.125, 5, 4),
    (10, 0.125, 2, 1),
    (1024, 0.1, 103, 102),
    (100, 0.29, 29, 29),
    (3, 0.01, 1, 1),
    (7, 1.0, 7, 7),
    (8, 1e-10, 1, 1),
]


@pytest.mark.parametrize(("n", "p", "ceil", "floor"), UNITS)
def test_number_of_units_in_the_statistic(n: int, p: float, ceil: int, floor: int) -> None:
    assert norms.RMSNorm(n, p=p).k(n) == ceil
    assert norms.RMSNorm(n, p=p, k_rounding="floor").k(n) == floor


def naive(x: Tensor, dims: int, k: int, eps: float, *, inside: bool, euclidean: bool = False) -> Tensor:
    """Return each row of ``x`` divided by the root mean square of the row's first ``k`` values.

    A row is the flattened last ``dims`` axes. With ``euclidean``, the root of the sum of squares is used instead.
    ``inside``: whether ``eps`` is added inside the root.
    """
    rows = x.flatten(x.dim() - dims).reshape(-1, math.prod(x.shape[x.dim() - dims :]))
    result = torch.empty_like(rows)
    for i, row in enumerate(rows):
        mean = sum(value**2 for value in row[:k].tolist()) / (1 if euclidean else k)
        result[i] = row / (math.sqrt(mean + eps) if inside else math.sqrt(mean) + eps)
    return result.reshape(x.shape)


LAYOUTS = [((5, 10), None), ((3, 4, 10), None), ((2, 3, 6, 6), (2, 3)), ((2, 3, 5, 4), (1, 2, 3))]


@pytest.mark.parametrize(("size", "axes"), LAYOUTS, ids=str)
@pytest.mark.parametrize("inside", [True, False], ids=["eps-inside", "eps-outside"])
@pytest.mark.parametrize("k_rounding", ["ceil", "floor"])
@pytest.mark.parametrize("p", [0.125, 0.6, 1.0])
def test_prms_equals_its_formula(
    size: tuple[int, ...], axes: tuple[int, ...] | None, inside: bool, k_rounding: str, p: float
) -> None:
    norm = norms.PRMS(name="prms", p=p, k_rounding=k_rounding, eps_inside=inside, eps=1e-2, axes=list(axes or (2, 3)))
    features = size[-1] if axes is None else size[1]
    layer = fill(norm.normaliser(norms.Site("a", features, feature_maps=axes is not None)))
    x, dims = draw(*size), len(axes or (1,))
    n = math.prod(size[-dims:])
    gain = layer.weight.detach().view(-1, *[1] * (2 if axes else 0))
    k = (math.ceil if k_rounding == "ceil" else math.floor)(p * n)
    expected = naive(x, dims, k, 1e-2, inside=inside) * gain
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)
    if axes is not None:  # which units are the first k does not depend on the memory format
        channels_last = layer(x.contiguous(memory_format=torch.channels_last))
        torch.testing.assert_close(channels_last, expected, rtol=1e-12, atol=1e-12)


def test_prms_over_several_axes_takes_the_first_units_in_row_major_order() -> None:
    x = draw(4, 3, 5)
    layer = norms.RMSNorm((3, 5), 1e-5, p=0.5).double()
    torch.testing.assert_close(layer(x), naive(x, 2, 8, 1e-5, inside=True))


@pytest.mark.parametrize("eps", [0.0, 1e-2])
def test_l2_equals_its_formula(eps: float) -> None:
    x = draw(5, 9)
    l2 = norms.L2(name="l2", eps=eps).value("a", 9).double()
    torch.testing.assert_close(l2(x), naive(x, 1, 9, eps, inside=True, euclidean=True))


# --- maps


@pytest.mark.parametrize("norm", [norms.LN(name="ln", eps=1e-2), norms.RMS(name="rms", eps=1e-2)], ids=lambda n: n.name)
@pytest.mark.parametrize("joint", [False, True], ids=["per-channel", "all-channels"])
def test_maps_equal_a_loop_over_channels(norm: norms.Norm, joint: bool) -> None:
    norm = type(norm)(name=norm.name, eps=norm.eps, axes=[1, 2, 3] if joint else [2, 3])
    layer = fill(norm.normaliser(norms.Site("a", 3, feature_maps=True, shift=True)))
    x = 1 + draw(2, 3, 4, 5)
    expected = torch.empty_like(x)
    for i in range(2):
        for c in range(3):
            group = x[i] if joint else x[i, c]
            mean = group.mean() if norm.name == "ln" else torch.zeros(())
            scale = ((group - mean) ** 2).mean() + norm.eps
            expected[i, c] = (x[i, c] - mean) / scale.sqrt() * layer.weight[c].detach() + layer.bias[c].detach()
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer(x.contiguous(memory_format=torch.channels_last)), expected)


@pytest.mark.parametrize("p", [1.0, 0.3])
def test_gradient_at_zero_with_eps_outside(p: float) -> None:
    """Where the statistic is 0, the root has no derivative, and the gradient of ``a / (root + eps)`` is ``d / eps``."""
    layer = norms.RMSNorm(8, 1e-2, p=p, eps_inside=False).double()
    a, d = draw(3, 8, seed=1), draw(3, 8, seed=2)
    a[1, :4] = 0  # the statistic of pRMSNorm is zero, the row is not
    a[2] = 0
    _, gradient = output_and_gradient(layer, a, d)
    torch.testing.assert_close(gradient[2], d[2] / 1e-2)
    if p < 1:
        torch.testing.assert_close(gradient[1], d[1] / 1e-2)
    assert torch.autograd.gradcheck(layer, a[: 2 if p == 1 else 1].requires_grad_())
