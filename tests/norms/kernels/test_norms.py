"""The fused norms and pointwise functions equal the eager ones, in values and gradients."""

import math
from typing import Any

import pytest
import torch
from helpers import norm_layers
from helpers.norm_layers import FORMATS, LAYERS, POINTWISE, TOLERANCE, Shape, assert_agree, close, every, pair, results
from helpers.sites import draw
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rmsexp import norms

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]

PROPERTY = settings(derandomize=True, deadline=None, max_examples=60)

# --- forms, sizes, types


@pytest.mark.parametrize(
    ("name", "width", "dtype"),
    [(name, 1000, torch.float32) for name in (*LAYERS, *POINTWISE)]
    + [(name, width, torch.float32) for name in ("ln", "prms", "dyt") for width in (1, 3, 17)]
    + [(name, 1000, torch.float64) for name in ("ln", "prms", "dyt", "derf")],
    ids=str,
)
def test_last_axis(name: str, width: int, dtype: torch.dtype) -> None:
    """Fused and eager norms over the last axis agree. test_any_shape_p_and_eps tests widths up to 70 in float64."""
    assert_agree(pair(name, width, dtype=dtype), draw(6, width).to(dtype))
    assert_agree(pair(name, width, dtype=dtype), draw(2, 3, 4, width).to(dtype))


@pytest.mark.parametrize(
    ("name", "width", "dtype"),  # maps have no streaming kernels
    [
        *(("ln", 1027, torch.float32), ("ln", 1024, torch.float64), ("ln", 1027, torch.bfloat16)),
        *(("prms, outside", 1027, torch.float32), ("prms, outside", 1024, torch.float64)),
        ("nonparametric_ln", 1027, torch.float32),
    ],
    ids=str,
)
def test_streaming_stores_give_the_results_of_two_halves(name: str, width: int, dtype: torch.dtype) -> None:
    """A large input, for which the streaming kernels run, has the results of its halves, for which they do not run."""
    torch.set_num_threads(2)
    rows = 2**23 // (dtype.itemsize * width) + 3  # more than 4 MiB per thread
    _, layer = pair(name, width, dtype=dtype)
    slope = 0.1 if name == "prms, outside" else 1.0
    x, dy = (draw(rows, width, seed=seed).to(dtype) for seed in (1, 7))
    y, dx, *sums = results(layer, x, dy, slope=slope)
    halves = [results(layer, *half, slope=slope) for half in zip(x.chunk(2), dy.chunk(2), strict=True)]
    y_halves, dx_halves, *sum_halves = zip(*halves, strict=True)
    torch.testing.assert_close((y, dx), (torch.cat(y_halves), torch.cat(dx_halves)))
    # In bfloat16, the whole sum and both partial sums are rounded. Otherwise only the order of the terms differs.
    relative = 2 * torch.finfo(dtype).eps if dtype is torch.bfloat16 else 1e-4
    for whole, (first, second) in zip(sums, sum_halves, strict=True):
        torch.testing.assert_close(whole, first + second, rtol=relative, atol=relative * float(whole.abs().max()))


@every
def test_several_axes(name: str) -> None:
    layers = pair(name, (3, 5))
    assert_agree(layers, draw(4, 2, 3, 5))
    transposed = draw(2, 4, 3, 5).transpose(0, 1)
    assert_agree(layers, transposed)
    assert layers[1](transposed).stride() == transposed.stride()
    assert_agree(layers, draw(4, 2, 5, 3).transpose(2, 3))


@norm_layers.formats
@pytest.mark.parametrize(
    ("name", "size", "dtype"),
    [(name, (2, 17, 3, 3), torch.float32) for name in (*LAYERS, *POINTWISE)]
    + [(name, size, torch.float64) for name in ("ln", "prms", "l2", "derf") for size in ((3, 1, 4, 5), (1, 8, 1, 1))],
    ids=str,
)
def test_maps(name: str, memory: str, size: Shape, dtype: torch.dtype) -> None:
    """Fused and eager norms over the positions of each channel agree, for gradients ``dy`` in both memory formats."""
    layers, x = pair(name, size[1], dtype=dtype, axes=(2, 3)), draw(*size).to(dtype)
    x = x.contiguous(memory_format=FORMATS[memory])
    assert layers[1](x).stride() == x.stride()
    for dy_format in FORMATS.values():
        assert_agree(layers, x, draw(*size, seed=7).to(dtype).contiguous(memory_format=dy_format))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_eps_of_the_type(dtype: torch.dtype) -> None:
    tiny = 1e-3 if dtype is torch.float32 else 1e-7  # so that the machine epsilon matters
    assert_agree(pair("rms", 9, None, dtype), tiny * draw(4, 9).to(dtype), draw(4, 9, seed=7).to(dtype) * tiny)


def rows_or_maps(memory: str, dtype: torch.dtype) -> tuple[Tensor, dict[str, Any]]:
    """Return a 2-D input ("rows") or feature maps in a memory format, and the options that a layer needs for it."""
    if memory == "rows":
        return draw(6, 37).to(dtype), {}
    return draw(2, 19, 3, 5).to(dtype).contiguous(memory_format=FORMATS[memory]), {"axes": (2, 3)}


@pytest.mark.parametrize("memory", ["rows", *FORMATS])
@pytest.mark.parametrize(
    ("name", "dtype"), [(name, torch.float32) for name in (*LAYERS, *POINTWISE)] + [("derf", torch.float64)], ids=str
)
def test_leaky_relu_in_the_same_kernel(name: str, memory: str, dtype: torch.dtype) -> None:
    x, options = rows_or_maps(memory, dtype)
    eager, fused = pair(name, x.shape[1], dtype=dtype, **options)
    for layer in (fused, eager):
        close(results(layer, x, slope=0.1), results(nn.Sequential(eager, nn.LeakyReLU(0.1)), x))


@PROPERTY
@given(
    st.sampled_from(["ln", "rms, gain and bias", "rms, outside", "l2", "l2, outside"]),
    st.lists(st.integers(1, 4), max_size=2),
    st.integers(1, 70),
    st.floats(0.01, 1.0),
    st.floats(1e-6, 1.0),
    st.sampled_from(["ceil", "floor"]),
)
def test_any_shape_p_and_eps(name: str, lead: list[int], width: int, p: float, eps: float, k_rounding: str) -> None:
    options = {} if name == "ln" else {"p": p, "k_rounding": k_rounding}
    assert_agree(pair(name, width, eps, **options), draw(*lead, width, seed=width))


@pytest.mark.parametrize("memory", ["rows", *FORMATS])
@pytest.mark.parametrize(
    ("name", "dtype"), [(name, torch.bfloat16) for name in (*LAYERS, *POINTWISE)] + [("prms", torch.float16)], ids=str
)
def test_half_is_float32_rounded(name: str, dtype: torch.dtype, memory: str) -> None:
    """Half-precision results equal the rounded float32 results bit by bit, and eager results within a rounding step."""
    x, options = rows_or_maps(memory, dtype)
    eager, fused = pair(name, x.shape[1], dtype=dtype, **options)
    half_results, eager_results = results(fused, x), results(eager, x)
    dy = draw(*x.shape, seed=7).to(dtype)
    expected = [result.to(dtype) for result in results(fused.float(), x.float(), dy.float())]
    for result, rounded in zip(half_results, expected, strict=True):
        assert result.dtype == dtype
        assert torch.equal(result, rounded)
    step = torch.finfo(dtype).eps
    for result, other in zip(half_results, eager_results, strict=True):
        torch.testing.assert_close(result, other, rtol=step, atol=step / 8)


# --- layouts


@pytest.mark.parametrize("name", ["ln", "prms", "rms, outside", "dyt", "derf"])
@pytest.mark.parametrize("layout", norm_layers.LAYOUTS)
def test_layouts_of_input_and_gradient(name: str, layout: str) -> None:
    layers, strided = pair(name, 10), norm_layers.LAYOUTS[layout]()
    assert_agree(layers, strided)
    assert_agree(layers, draw(6, 10, seed=3), strided)
    assert_agree(layers, strided, strided)


@pytest.mark.parametrize("name", ["ln", "prms", "rms, outside", "dyt", "derf"])
@pytest.mark.parametrize("layout", norm_layers.MAPS)
def test_layouts_of_maps(name: str, layout: str) -> None:
    layers, strided = pair(name, 3, axes=(2, 3)), norm_layers.MAPS[layout]()
    for memory in FORMATS.values():
        dense = draw(2, 3, 4, 5, seed=3).contiguous(memory_format=memory)
        assert_agree(layers, strided, dense)
        assert_agree(layers, dense, strided)


# --- edge cases


@pytest.mark.parametrize("name", ["ln", "nonparametric_ln", "prms, outside", "dyt", "derf"])
def test_inputs_without_rows_or_with_a_single_row(name: str) -> None:
    for size in ((0, 8), (2, 0, 8), (8,), (1, 8)):
        assert_agree(pair(name, 8), draw(*size))
    for size in ((0, 3, 4, 4), (1, 3, 4, 4)):
        for memory in FORMATS.values():
            assert_agree(pair(name, 3, axes=(2, 3)), draw(*size).contiguous(memory_format=memory))


@every
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_zeros(name: str, dtype: torch.dtype) -> None:
    """Fused and eager norms agree if a row, or only its part in the statistic of pRMSNorm, is zero; also for maps."""
    x = draw(4, 10).to(dtype)
    x[1], x[2, :3] = 0, 0
    assert_agree(pair(name, 10, dtype=dtype), x)
    maps = x.view(2, 2, 2, 5)
    for memory in FORMATS.values():
        assert_agree(pair(name, 2, dtype=dtype, axes=(2, 3)), maps.contiguous(memory_format=memory))


@every
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_values_that_are_not_finite_stay_in_their_rows(name: str, dtype: torch.dtype) -> None:
    """A NaN or infinity in a row's first or last unit leaves other rows finite, and fused and eager norms agree."""
    x = draw(13, 17).to(dtype)
    values = [(value, unit) for value in (math.nan, math.inf, -math.inf) for unit in (0, 16)]
    for row, (value, unit) in enumerate(values):
        x[2 * row + 1, unit] = value
    eager, fused = (results(layer, x) for layer in pair(name, 17, dtype=dtype))
    close(fused[:2], eager[:2], equal_nan=True)
    assert fused[0][[1, 3]].isnan().any(1).all()
    assert all(result[::2].isfinite().all() for result in fused[:2])


@norm_layers.formats
@pytest.mark.parametrize("name", ["ln", "rms, gain and bias", "prms, outside"])
def test_large_maps_are_accurate(name: str, memory: str) -> None:
    """For maps of 512 x 512 positions, float32 results have a relative error of at most 4e-6.

    If the 2^18 numbers of a sum are added one after the other, the error is 3e-5. The terms of the sums do not cancel:
    the mean of x is 0.5, and dy depends on x.
    """
    layer, noise = pair(name, 4, axes=(2, 3))[1], draw(1, 4, 512, 512, seed=7)
    x = (draw(1, 4, 512, 512) + 0.5).float().contiguous(memory_format=FORMATS[memory])
    dy = x + noise.float()
    exact = results(layer, x.double(), dy.double())
    for result, reference in zip(results(layer.float(), x, dy), exact, strict=True):
        assert (result - reference).abs().max() <= 4e-6 * reference.abs().max()


@pytest.mark.parametrize(("layer", "function"), [(norms.DynamicTanh, torch.tanh), (norms.DynamicErf, torch.erf)])
def test_pointwise_norms_are_accurate_near_zero(layer: Any, function: Any) -> None:
    x = torch.logspace(-10, 1, 401).unsqueeze(0)
    x = torch.cat([-x, x])
    fused = layer(401, 1.0, impl="fused")(x).double()
    torch.testing.assert_close(fused, function(x.double()), rtol=4e-7, atol=0)


# --- derivatives


@pytest.mark.parametrize("name", ["ln", "ln, gain", "nonparametric_ln", "rms, bias", "dyt", "derf"])
@pytest.mark.parametrize("constant", ["input", "parameters"])
def test_gradients_where_not_all_are_needed(name: str, constant: str) -> None:
    gradients = []
    for layer in pair(name, 10):
        layer.requires_grad_(constant == "input")
        x = draw(4, 10).requires_grad_(constant == "parameters")
        y, leaves = layer(x), [tensor for tensor in (x, *layer.parameters()) if tensor.requires_grad]
        assert y.requires_grad == bool(leaves)
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                assert torch.equal(layer(x), y)
                assert not layer(x + 1).requires_grad
        leaf_gradients = torch.autograd.grad(y.square().sum(), leaves) if leaves else ()
        gradients.append([y, *leaf_gradients])
    close(gradients[1], gradients[0])
