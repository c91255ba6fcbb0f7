"""Section 4.2 of the paper: the gradients of a layer with RMSNorm."""

import numpy as np
import torch

from rmsexp.analysis.invariance import EXAMPLES, N_IN, N_OUT, draw, norm, site


def test_gradients_of_rmsnorm_equal_the_formulas_of_section_4_2() -> None:
    """The loss is ``sum(D * y)`` with a random constant D, so only the layer changes the gradients."""
    layer = site(norm("rms"))
    x, upstream = draw((EXAMPLES, N_IN), "test", "x").requires_grad_(), draw((EXAMPLES, N_OUT), "test", "upstream")
    leaves = [layer.weight, x, layer.norm.weight, layer.norm.bias]
    weight, rows, gain, _ = (leaf.detach().numpy() for leaf in leaves)
    of_weight, of_x, of_gain, of_bias = expected = [np.zeros(leaf.shape) for leaf in leaves]
    for number, (row, d) in enumerate(zip(rows, upstream.numpy(), strict=True)):
        a = weight @ row
        rms = np.sqrt((a**2).mean())
        matrix = (np.eye(N_OUT) - np.outer(a, a) / (N_OUT * rms**2)) / rms
        of_weight += np.outer(matrix @ (gain * d), row)
        of_x[number] = weight.T @ matrix @ (gain * d)
        of_gain += d * a / rms
        of_bias += d
    for gradient, formula in zip(torch.autograd.grad((layer(x) * upstream).sum(), leaves), expected, strict=True):
        np.testing.assert_allclose(gradient, formula, rtol=1e-10, atol=1e-12)
