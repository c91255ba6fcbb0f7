"""The Triton kernels equal PyTorch's autograd in float64: run by Triton's interpreter on CPU, and on a GPU if any."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from helpers.interpreter import INTERPRETED, ON_GPU, assert_passes_in_the_interpreter
from torch import Tensor

from rmsexp.norms.kernels.forms import Kind

pytestmark = pytest.mark.slow

triton = pytest.importorskip("triton", reason="Triton is installed where PyTorch has CUDA")

RUNS = INTERPRETED or ON_GPU  # whether this process can run the kernels
if RUNS:
    from rmsexp.norms.kernels import triton as kernels
    from rmsexp.norms.kernels.triton import norms as norm_kernels
    from rmsexp.norms.kernels.triton import pointwise as pointwise_kernels

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
SINGLE = [case._replace(dtype=torch.float32) for case in (PARTIAL, LAYER)]
ALL_CASES = [*map(Case, FORMS), *SINGLE]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def name_of(value: object) -> str:
    return "-".join(map(name_of, value)) if isinstance(value, tuple) else str(value)


@pytest.mark.skipif(INTERPRETED, reason="this process already runs the interpreter")
def test_under_the_interpreter() -> None:
    assert_passes_in_the_interpreter(__file__)


@pytest.fixture(autouse=True)
def default_device() -> Iterator[None]:
    with torch.device("cuda" if ON_GPU else "cpu"):
        yield


def normalised(a: Tensor, form: Form) -> Tensor:
    """Return ``a``, normalised over its last axis."""
    if form.kind == Kind.NONE:
        return a
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
        self._gaps: list[Tensor] = []

    def __call__(self, *shape: int) -> Tensor:
        values = torch.randn(shape, generator=self.generator, dtype=torch.float64, device="cpu")
        return values.to(torch.get_default_device(), self.dtype)

    def matrix(self, *shape: int) -> Tensor:
        """Draw a tensor whose entries along the first axis are separated in memory by three NaN."""
        values = self(*shape)
        with_gaps = torch.full((shape[0], values[0].numel() + 3), torch.nan, dtype=self.dtype)
        self._gaps.append(with_gaps[:, -3:])
        return with_gaps[:, :-3].unflatten(1, shape[1:]).copy_(values)

    def assert_gaps_are_untouched(self) -> None:
        """Assert that nothing was written between the entries of the matrices."""
        assert all(gap.isnan().all() for gap in self._gaps)


def leaves(*tensors: Tensor) -> list[Tensor]:
    """Return exact copies of the tensors in float64, as leaves of the reference's autograd graph."""
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def assert_close(actual: Tensor, reference: Tensor, tolerance: float | None = None) -> None:
    tolerance = TOLERANCE[actual.dtype] if tolerance is None else tolerance
    torch.testing.assert_close(actual.double(), reference.detach(), rtol=tolerance, atol=tolerance)


class TestNorms:
    __test__ = RUNS

    LAYOUTS: dict[str, Callable[[Draws], Tensor]] = {  # noqa: RUF012 (read only)
        "rows": lambda draw: draw(3, 2, 7),
        "one unit": lambda draw: draw(5, 1),
        "rows wider than a block": lambda draw: draw(3, 4099),
        "transposed batch": lambda draw: draw(3, 4, 7).transpose(0, 1),
        "transposed rows": lambda draw: draw(7, 4).t(),
        "maps": lambda draw: draw(3, 5, 4, 3),
        "channels-last maps": lambda draw: draw(3, 5, 4, 3).to(memory_format=torch.channels_last),
        "many channels-last maps": lambda draw: draw(2, 35, 10, 15).to(memory_format=torch.channels_last),
        "transposed maps": lambda draw: draw(3, 5, 4, 3).transpose(2, 3),
    }

    @pytest.mark.parametrize("case", ALL_CASES, ids=name_of)
    def test_values_and_gradients(self, case: Case) -> None:
        self.check("rows", *case)

    @pytest.mark.parametrize("layout", sorted(LAYOUTS.keys() - {"rows"}))
    def test_layouts(self, layout: str) -> None:
        for case in (PARTIAL, LAYER):
            self.check(layout, *case)

    def test_several_rows_per_block(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Results are right in blocks of four rows, of which the last one may have fewer."""
        monkeypatch.setattr(norm_kernels, "block_options", lambda _: {"BLOCK_ROWS": 4, "BLOCK_N": 8})
        for case in (PARTIAL, LAYER):
            for layout in ("rows", "maps", "channels-last maps"):
                self.check(layout, *case)

    @pytest.mark.parametrize(
        ("rows", "n", "block_rows"), [(255, 5, 1), (256, 5, 2), (518, 5, 4), (10**6, 4099, 16), (10**6, 1, 4096)]
    )
    def test_size_of_blocks(self, rows: int, n: int, block_rows: int) -> None:
        options = norm_kernels.block_options(norm_kernels.Layout(rows, 1, 1, n))
        assert options["BLOCK_ROWS"] == block_rows
        assert options["BLOCK_N"] == min(triton.next_power_of_2(n), 4096 // block_rows)

    @pytest.mark.parametrize(("gain", "shift"), [(True, False), (False, True), (False, False)])
    @pytest.mark.parametrize("layout", ["rows", "maps"])
    def test_without_parameters(self, layout: str, gain: bool, shift: bool) -> None:
        self.check(layout, *LAYER, has_gain=gain, has_shift=shift)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("layout", ["rows", "channels-last maps"])
    def test_half_precision_is_computed_in_float32(self, layout: str, dtype: torch.dtype) -> None:
        for form in (Form(Kind.RMS, 0.4), Form(Kind.LAYER)):
            self.check(layout, form, dtype)

    def check(self, layout: str, form: Form, dtype: torch.dtype, has_gain: bool = True, has_shift: bool = True) -> None:
        draw = Draws(dtype)
        x = self.LAYOUTS[layout](draw)
        maps = x.ndim == 4
        features, dy = x.shape[1 if maps else -1], draw(*x.shape)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        gain, shift = draw(features), draw(features)
        n = x[0, 0].numel() if maps else features
        options = (maps, form.kind, form.units(n), form.inside, EPS)
        gain_argument, shift_argument = gain if has_gain else None, shift if has_shift else None
        y, mean, scale = kernels.normalise_forward(x, gain_argument, shift_argument, *options)
        dx, dgain, dshift = kernels.normalise_backward(dy, x, gain_argument, mean, scale, shift_argument, *options)

        a, g, b = leaves(x, gain, shift)
        expected = normalised(a.flatten(2) if maps else a, form)
        broadcast = (1, -1, 1) if maps else (-1,)
        expected = expected * g.reshape(broadcast) if has_gain else expected
        expected = (expected + b.reshape(broadcast) if has_shift else expected).reshape(x.shape)
        expected.backward(dy.double())
        assert (y.dtype, y.shape, dx.dtype, dx.shape) == (dtype, x.shape, dtype, x.shape)
        assert mean.dtype == scale.dtype == dgain.dtype == dshift.dtype == wide
        assert mean.numel() == (scale.numel() if form.kind == Kind.LAYER else 0)
        assert scale.numel() == x.numel() // n
        assert_close(y, expected)
        assert_close(dx, a.grad)
        tolerance = 10 * TOLERANCE[wide]  # for sums over rows, whose terms nearly cancel
        for gradient, reference, exists in ((dgain, g.grad, has_gain), (dshift, b.grad, has_shift)):
            assert gradient.shape == ((features,) if exists else (0,))
            if exists:
                assert_close(gradient, reference, tolerance)

    def test_results_have_the_memory_layout_of_the_input(self) -> None:
        for layout in ("transposed batch", "channels-last maps"):
            x = self.LAYOUTS[layout](Draws(torch.float32))
            options = (x.ndim == 4, Kind.RMS, 3, True, EPS)
            y, mean, scale = kernels.normalise_forward(x, None, None, *options)
            dx, _, _ = kernels.normalise_backward(x.contiguous(), x, None, mean, scale, None, *options)
            assert y.stride() == dx.stride() == x.stride()

    def test_statistic_of_zero(self) -> None:
        """If eps is outside the root and the statistic is 0, then y = 0 and the gradient of x is gain * dy / eps."""
        x, gain = torch.zeros(2, 4, dtype=torch.float64), torch.full((4,), 3.0)
        dy = torch.ones_like(x)
        for kind in (Kind.RMS, Kind.EUCLID):
            y, mean, scale = kernels.normalise_forward(x, gain, None, False, kind, 4, False, EPS)
            dx, dgain, _ = kernels.normalise_backward(dy, x, gain, mean, scale, None, False, kind, 4, False, EPS)
            assert torch.equal(y, x)
            assert torch.equal(dgain, x[0])
            assert_close(dx, dy * 3 / EPS)

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 2, 3, 3), (3, 2, 0, 3)], ids=str)
    def test_empty_input(self, shape: tuple[int, ...]) -> None:
        x, maps = torch.empty(shape), len(shape) == 4
        gain, options = torch.ones(shape[1]), (maps, Kind.RMS, 1, True, EPS)
        y, mean, scale = kernels.normalise_forward(x, gain, None, *options)
        dx, dgain, dshift = kernels.normalise_backward(y, x, gain, mean, scale, gain, *options)
        assert y.shape == dx.shape == x.shape
        assert torch.equal(dgain, torch.zeros(shape[1]))
        assert torch.equal(dshift, torch.zeros(shape[1]))


class TestAdditionAndPointwise:
    """One case each; test_add_norms.py and test_pointwise.py have others, which take minutes in the interpreter."""

    __test__ = RUNS

    @pytest.mark.parametrize(
        ("case", "narrow"), [(LAYER, torch.float64), (SINGLE[0], torch.float32), (SINGLE[0], torch.float16)], ids=str
    )
    def test_a_residual_sum_and_its_norm(self, case: Case, narrow: torch.dtype) -> None:
        form, dtype = case
        draw = Draws(dtype)
        x, addend, gain, shift = draw(5, 7), draw(5, 7).to(narrow), draw(7), draw(7)
        dtotal, dy, options = draw(5, 7), draw(5, 7), (form.kind, form.units(7), form.inside, EPS)
        total, y, mean, scale = kernels.add_normalise_forward(x, addend, gain, shift, *options)
        gradients = kernels.add_normalise_backward(dtotal, dy, total, gain, mean, scale, shift, *options)

        assert torch.equal(total, x + addend)
        a, *parameters = leaves(total, gain, shift)
        expected = normalised(a, form) * parameters[0] + parameters[1]
        assert_close(y, expected)
        reference = torch.autograd.grad([a, expected], [a, *parameters], [dtotal.double(), dy.double()])
        for actual, wanted in zip(gradients, reference, strict=True):
            assert_close(actual, wanted, 10 * TOLERANCE[dtype])

    @pytest.mark.parametrize(
        ("shape", "function", "several_rows"),
        [
            *(((5, 7), "tanh", False), ((5, 7), "erf", True)),
            *(((2, 3, 2, 5), "tanh", True), ((2, 3, 2, 5), "erf", False)),
        ],
        ids=str,
    )
    def test_pointwise(
        self, shape: tuple[int, ...], function: str, several_rows: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if several_rows:
            monkeypatch.setattr(pointwise_kernels, "block_options", lambda _: {"BLOCK_ROWS": 4, "BLOCK_N": 4})
        draw = Draws(torch.float64)
        x, dy, alpha, gain, shift = draw(*shape), draw(*shape), draw(1), draw(shape[1]), draw(shape[1])
        maps, offset = len(shape) == 4, draw(1) if function == "erf" else None
        y = kernels.pointwise_forward(x, alpha, offset, gain, shift, function, maps)
        dx, dscalars, dgain, dshift = kernels.pointwise_backward(dy, x, alpha, offset, gain, shift, function, maps)

        zero = torch.zeros(1, dtype=torch.float64)
        a, scalars, g, b = leaves(x, torch.cat([alpha, zero if offset is None else offset]), gain, shift)
        broadcast = (1, -1, 1, 1) if maps else (-1,)
        mapped = getattr(torch, function)(scalars[0] * a + scalars[1])
        expected = mapped * g.reshape(broadcast) + b.reshape(broadcast)
        expected.backward(dy)
        assert_close(y, expected)
        for actual, wanted in ((dx, a), (dgain, g), (dshift, b)):
            assert_close(actual, wanted.grad)
        count = 1 if offset is None else 2  # without an offset, its gradient is not used
        assert_close(dscalars[:count], scalars.grad[:count])


class StepSizes(NamedTuple):
    rows: int
    hidden: int
    masked: bool  # whether a mask is passed, and to the GRU also a bias
    has_dout: bool  # whether this step's output has a gradient


MASKED, UNMASKED, WIDE = StepSizes(5, 7, True, True), StepSizes(3, 8, False, False), StepSizes(2, 1027, True, True)


class TestGates:
    __test__ = RUNS

    @staticmethod
    def mask(rows: int, masked: bool) -> Tensor | None:
        """Return a mask in which every other row is padding, with the strides of one time step's mask, or None."""
        return torch.stack((torch.ones(rows), torch.arange(rows) % 2), 1).bool()[:, 1] if masked else None

    @pytest.mark.parametrize(
        ("sizes", "case"),
        [(MASKED, case) for case in (Case(FORMS[0]), Case(FORMS[5]), PARTIAL, LAYER, SINGLE[1])]
        + [(UNMASKED, PARTIAL), (UNMASKED, LAYER), (WIDE, LAYER)],
        ids=name_of,
    )
    def test_gru(self, sizes: StepSizes, case: Case) -> None:
        (rows, hidden, masked, has_dout), (form, dtype) = sizes, case
        draw, width, mask = Draws(dtype), 3 * hidden, self.mask(rows, masked)
        ax, ah_without_bias, h = (draw.matrix(rows, size) for size in (width, width, hidden))
        bias, affine = draw(width) if masked else None, draw(2, 2, width)
        dout, dh = draw.matrix(rows, hidden) if has_dout else None, draw.matrix(rows, hidden)
        gates, statistics, out = (draw.matrix(rows, size) for size in (width, 8, hidden))
        dax, dah, partials = draw.matrix(rows, width), draw.matrix(rows, width), draw.matrix(rows, 2, 2, width)

        x_leaf, h_leaf, state, parameters = leaves(ax, ah_without_bias, h, affine)
        h_sums = h_leaf if bias is None else h_leaf + bias.double()
        norm_x, norm_h = (
            [norm_of(a[:, part], pair[:, part], form) for part in (slice(2 * hidden), slice(2 * hidden, None))]
            for a, pair in zip((x_leaf, h_sums), parameters, strict=True)
        )
        reset, update = torch.sigmoid(norm_x[0] + norm_h[0]).chunk(2, -1)
        candidate = torch.tanh(norm_x[1] + reset * norm_h[1])
        expected = update * state + (1 - update) * candidate
        if mask is not None:
            expected = torch.where(mask.unsqueeze(1), expected, state)
        expected.backward(dh.double() + (0 if dout is None else dout.double()))

        options = ([form.kind, form.units(2 * hidden), form.units(hidden), int(form.inside)], EPS)
        ah, before = draw.matrix(rows, width).copy_(ah_without_bias), partials.clone()
        kernels.gru_gates_forward(ax, ah, h, mask, bias, affine, *options, gates, statistics, out)
        kernels.gru_gates_backward(dout, dh, ax, ah, h, gates, statistics, mask, affine, *options, dax, dah, partials)
        assert_close(ah, h_sums)
        assert_close(out, expected)
        valid = slice(None) if mask is None else mask
        assert_close(gates[valid], torch.cat((reset, update, candidate), 1)[valid])
        assert_close(dh, state.grad)
        assert_close(dax, x_leaf.grad)
        assert_close(dah, h_leaf.grad)
        assert_close((partials - before).sum(0), parameters.grad)
        draw.assert_gaps_are_untouched()

    @pytest.mark.parametrize(
        ("sizes", "case"),
        [(MASKED, PARTIAL), (MASKED, LAYER), (MASKED, SINGLE[1]), (UNMASKED, PARTIAL), (WIDE, LAYER)],
        ids=name_of,
    )
    def test_lstm(self, sizes: StepSizes, case: Case) -> None:
        (rows, hidden, masked, has_dout), (form, dtype) = sizes, case
        draw, width, mask = Draws(dtype), 4 * hidden, self.mask(rows, masked)
        ax, ah = draw.matrix(rows, width), draw.matrix(rows, width)
        h, c, dh, dc = (draw.matrix(rows, hidden) for _ in range(4))
        affine, cell_affine = draw(2, 2, width), draw(2, hidden)
        dout = draw.matrix(rows, hidden) if has_dout else None
        gates, statistics = draw.matrix(rows, 5 * hidden), draw.matrix(rows, 6)
        out_h, out_c = draw.matrix(rows, hidden), draw.matrix(rows, hidden)
        dax, dah = draw.matrix(rows, width), draw.matrix(rows, width)
        partials, cell_partials = draw.matrix(rows, 2, 2, width), draw.matrix(rows, 2, hidden)

        inputs = leaves(ax, ah, h, c, affine, cell_affine)
        x_leaf, h_leaf, state, cell, parameters, cell_parameters = inputs
        sums = norm_of(x_leaf, parameters[0], form) + norm_of(h_leaf, parameters[1], form)
        i, f, o = torch.sigmoid(sums[:, : 3 * hidden]).chunk(3, -1)
        g = torch.tanh(sums[:, 3 * hidden :])
        new_cell = f * cell + i * g
        cell_tanh = torch.tanh(norm_of(new_cell, cell_parameters, form))
        new_state = o * cell_tanh
        if mask is not None:
            new_state = torch.where(mask.unsqueeze(1), new_state, state)
            new_cell = torch.where(mask.unsqueeze(1), new_cell, cell)
        upstream = [dh.double() + (0 if dout is None else dout.double()), dc.double()]
        gradients = torch.autograd.grad([new_state, new_cell], inputs, upstream, materialize_grads=True)

        options = ([form.kind, form.units(width), form.units(hidden), int(form.inside)], EPS)
        before, cell_before = partials.clone(), cell_partials.clone()
        kernels.lstm_gates_forward(ax, ah, h, c, mask, affine, cell_affine, *options, gates, statistics, out_h, out_c)
        arguments = (dout, dh, dc, ax, ah, c, out_c, gates, statistics, mask, affine, cell_affine)
        kernels.lstm_gates_backward(*arguments, *options, dax, dah, partials, cell_partials)
        assert_close(out_h, new_state)
        assert_close(out_c, new_cell)
        valid = slice(None) if mask is None else mask
        assert_close(gates[valid], torch.cat((i, f, o, g, cell_tanh), 1)[valid])
        added = [(partials - before).sum(0), (cell_partials - cell_before).sum(0)]
        for actual, reference in zip([dax, dah, dh, dc, *added], gradients, strict=True):
            assert_close(actual, reference)
        draw.assert_gaps_are_untouched()


class AttentionSizes(NamedTuple):
    rows: int
    length: int
    width: int
    depth: int


SMALL = AttentionSizes(3, 5, 7, 4)
# the first is longer and wider than a block of the kernels, the second deeper
LONG_AND_WIDE, DEEP = AttentionSizes(2, 19, 259, 3), AttentionSizes(2, 1, 3, 260)


class TestAttention:
    __test__ = RUNS

    @pytest.mark.parametrize(
        ("sizes", "case"),
        [(SMALL, PARTIAL), (SMALL, LAYER), (SMALL, SINGLE[1]), (LONG_AND_WIDE, PARTIAL), (DEEP, PARTIAL)],
        ids=name_of,
    )
    def test_values_and_gradients(self, sizes: AttentionSizes, case: Case) -> None:
        """Results are right, although keys and values of padding are NaN and the batch's last row is all padding."""
        (rows, length, width, depth), (form, dtype) = sizes, case
        draw = Draws(dtype)
        mask = torch.zeros(rows, length + 2, dtype=torch.bool)[:, :length]
        mask[:-1] = torch.arange(length) % 3 != 1
        keys, dkeys = draw.matrix(rows, length, width), draw.matrix(rows, length, width)
        query, dquery = draw.matrix(rows, width), draw.matrix(rows, width)
        values, dcontext = draw.matrix(rows, length, depth), draw.matrix(rows, depth)
        score, affine, partials = draw(width), draw(2, width), draw.matrix(rows, 3, width)
        statistics, alpha, context = draw.matrix(rows, 2), draw.matrix(rows, length), draw.matrix(rows, depth)

        keys_leaf, query_leaf, score_leaf, parameters = leaves(keys, query, score, affine)
        energy = torch.tanh(keys_leaf + norm_of(query_leaf, parameters, form).unsqueeze(1)) @ score_leaf
        weights = torch.softmax(energy.masked_fill(~mask, -1e30), -1) * mask
        expected = (weights.unsqueeze(1) @ values.double()).squeeze(1)
        expected.backward(dcontext.double())

        keys[~mask] = values[~mask] = torch.nan
        before, keys_before = partials.clone(), dkeys.clone()
        options = ([form.kind, form.units(width), int(form.inside)], EPS)
        kernels.attention_forward(keys, query, values, mask, score, affine, *options, statistics, alpha, context)
        arguments = (dcontext, keys, query, values, mask, score, affine, statistics, alpha)
        kernels.attention_backward(*arguments, *options, dkeys, dquery, partials)
        assert_close(alpha, weights)
        assert_close(context, expected)
        assert_close(dkeys - keys_before, keys_leaf.grad)
        assert_close(dquery, query_leaf.grad)
        added = (partials - before).sum(0)
        assert_close(added[0], score_leaf.grad)
        assert_close(added[1:], parameters.grad)
        draw.assert_gaps_are_untouched()


class TestOperators:
    __test__ = RUNS

    def test_tanh_near_zero(self) -> None:
        """The relative error of the kernels' tanh is at most 3e-7 in float32 and 5e-16 in float64, also near 0.

        The candidate of a GRU without norm and with state 0 is tanh(ax), so the test reads it there.
        """
        for dtype, tolerance in ((torch.float32, 3e-7), (torch.float64, 5e-16)):
            x = torch.logspace(-10, 1, 401, dtype=dtype)
            x = torch.cat((-x, x)).unsqueeze(0)
            h, width = torch.zeros_like(x), 3 * x.shape[1]
            ax, ah = torch.cat((h, h, x), 1), x.new_zeros(1, width)
            affine = x.new_tensor([1, 0]).reshape(1, 2, 1).repeat(2, 1, width)
            gates, statistics, form = torch.empty_like(ax), x.new_empty(1, 8), [Kind.NONE, 1, 1, 1]
            kernels.gru_gates_forward(ax, ah, h, None, None, affine, form, EPS, gates, statistics, h)
            torch.testing.assert_close(gates[:, -x.shape[1] :].double(), torch.tanh(x.double()), rtol=tolerance, atol=0)

    @pytest.mark.skipif(not INTERPRETED, reason="other tests of this process load the C++ operators of these names")
    def test_registration(self) -> None:
        """The functions have the parameter names of the C++ definitions; the dispatcher calls normalise_forward."""
        schemas = {}
        for source in Path(kernels.__file__).parents[1].glob("cpp/*.cpp"):
            for definition in re.findall(r'm\.def\(\s*((?:"[^"]*"\s*)+)[,)]', source.read_text()):
                schema = "".join(re.findall(r'"([^"]*)"', definition))
                schemas[schema.split("(")[0]] = schema
        library = torch.library.Library("rmsexp", "FRAGMENT")
        for operator in kernels.OPERATORS:
            schema = torch._C.parse_schema(schemas[operator.__name__])
            assert [argument.name for argument in schema.arguments] == [*inspect.signature(operator).parameters]
            library.define(schemas[operator.__name__])
        kernels.register("CPU")
        x = Draws(torch.float64)(3, 4)
        arguments = (x, x[0], None, False, Kind.RMS, 2, True, EPS)
        dispatched, direct = torch.ops.rmsexp.normalise_forward(*arguments), kernels.normalise_forward(*arguments)
        assert all(torch.equal(a, b) for a, b in zip(dispatched, direct, strict=True))
