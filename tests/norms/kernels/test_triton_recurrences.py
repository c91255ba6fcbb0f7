"""The Triton kernels of recurrences and attention equal autograd in float64; test_triton.py runs this file."""

import pytest
import torch
from helpers import triton_reference
from helpers.triton_reference import EPS, FORMS, LAYER, PARTIAL, RUNS, SINGLE, Case, Draws, assert_close, norm_of
from torch import Tensor

from rmsexp.norms.kernels.norms import Kind

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("default_device")]

pytest.importorskip("triton", reason="Triton is installed where PyTorch has CUDA")

if RUNS:
    from rmsexp.norms.kernels import triton as kernels


# rows, hidden units, whether a mask is passed (to the GRU also a bias), whether this step's output has a gradient
MASKED, UNMASKED, WIDE = (3, 7, True, True), (2, 8, False, False), (2, 1027, True, True)
Sizes = tuple[int, int, bool, bool]


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
        ids=triton_reference.name_of,
    )
    def test_gru(self, sizes: Sizes, case: Case) -> None:
        (rows, hidden, masked, has_dout), (form, dtype) = sizes, case
        draw, width, mask = Draws(dtype), 3 * hidden, self.mask(rows, masked)
        ax, ah_without_bias, h = (draw.matrix(rows, size) for size in (width, width, hidden))
        bias, affine = draw(width) if masked else None, draw(2, 2, width)
        dout, dh = draw.matrix(rows, hidden) if has_dout else None, draw.matrix(rows, hidden)
        gates, statistics, out = (draw.matrix(rows, size) for size in (width, 8, hidden))
        dax, dah, partials = draw.matrix(rows, width), draw.matrix(rows, width), draw.matrix(rows, 2, 2, width)

        x_leaf, h_leaf, state, parameters = triton_reference.leaves(ax, ah_without_bias, h, affine)
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
        ids=triton_reference.name_of,
    )
    def test_lstm(self, sizes: Sizes, case: Case) -> None:
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

        inputs = triton_reference.leaves(ax, ah, h, c, affine, cell_affine)
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


# rows, source positions, units of a key and of a value
SMALL = (2, 5, 7, 4)
# the first is longer and wider than a block of the kernels, the second deeper
LONG_AND_WIDE, DEEP = (2, 19, 259, 3), (2, 1, 3, 260)


class TestAttention:
    __test__ = RUNS

    @pytest.mark.parametrize(
        ("sizes", "case"),
        [(SMALL, PARTIAL), (SMALL, LAYER), (SMALL, SINGLE[1]), (LONG_AND_WIDE, PARTIAL), (DEEP, PARTIAL)],
        ids=triton_reference.name_of,
    )
    def test_values_and_gradients(self, sizes: tuple[int, ...], case: Case) -> None:
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

        keys_leaf, query_leaf, score_leaf, parameters = triton_reference.leaves(keys, query, score, affine)
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
