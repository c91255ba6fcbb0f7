"""Layers of the benchmark."""

import torch

from rmsexp.measure import layers
from rmsexp.measure.layers import LayerPass, norm_cases
from rmsexp.records.record import FEWEST_PROBES


def test_a_pass_computes_the_gradients_of_input_and_parameters_and_deletes_them() -> None:
    layer = torch.nn.Linear(3, 2)
    x, gradient = torch.arange(12.0).reshape(4, 3).requires_grad_(), torch.arange(8.0).reshape(4, 2)
    leaves, recorded = [x, *layer.parameters()], []
    for leaf in leaves:
        leaf.register_post_accumulate_grad_hook(lambda leaf: recorded.append((leaf, leaf.grad)))
    layer_pass = LayerPass(layer, x, gradient, layer.parameters())
    for _ in range(2):  # the second would add to a gradient left by the first
        layer_pass(0, ())
        gradients = {id(leaf): value for leaf, value in recorded}
        expected = torch.autograd.grad(layer(x), leaves, gradient)
        assert all(torch.equal(gradients[id(leaf)], value) for leaf, value in zip(leaves, expected, strict=True))
        assert [leaf.grad for leaf in leaves] == [None] * 3
        recorded.clear()


def test_all_layers_of_a_norm_compute_the_same_function() -> None:
    both, forward, added = norm_cases("4x32", torch.float64, torch.device("cpu"), own=(), peers=False)
    x = both.layers["rms eager"].x
    outputs = {name: layer_pass.layer(x) for name, layer_pass in both.layers.items()}
    assert torch.allclose(outputs.pop("triad"), x + 3 * both.layers["rms eager"].gradient)
    assert all(torch.equal(forward.layers[name].layer(x), y) for name, y in outputs.items())
    assert added.layers.pop("triad") is both.layers["triad"]
    for norm in ("ln", "rms", "prms"):
        assert torch.allclose(outputs[f"{norm} eager"], outputs[f"{norm} fused"], atol=1e-10)
    assert torch.allclose(outputs["ln eager"], outputs["nn.LayerNorm"], atol=1e-10)
    assert torch.allclose(outputs["rms eager"], outputs["nn.RMSNorm"], atol=1e-10)
    mean_square, sum_square = x[:, :2].square().mean(1, keepdim=True), x.square().sum(1, keepdim=True)
    assert torch.allclose(outputs["prms eager"], x / mean_square.sqrt(), atol=1e-10)
    assert torch.allclose(outputs["l2 fused"], x / sum_square.sqrt(), atol=1e-10)
    assert torch.equal(outputs["rms gainless fused"], outputs["rms fused"])  # whose gain is 1
    assert torch.allclose(outputs["dyt fused"], (0.5 * x).tanh(), atol=1e-10)
    assert torch.allclose(outputs["derf fused"], (0.5 * x).erf(), atol=1e-10)
    assert torch.allclose(outputs["nonparametric_ln fused"], outputs["ln eager"], atol=1e-10)
    addend = added.layers["rms fused"].leaves[1]
    for name, layer_pass in added.layers.items():
        total, y = layer_pass.layer(x)
        assert torch.equal(total, x + addend)
        assert torch.allclose(y, both.layers[name.removesuffix(", apart")].layer(x + addend), atol=1e-10)
        assert layer_pass.leaves[2:] == both.layers[name.removesuffix(", apart")].leaves[1:]


def test_a_case_of_few_rounds_has_enough_probes_to_show_a_state() -> None:
    case = norm_cases("4x32", torch.float32, torch.device("cpu"), own=(), peers=False)[1]
    found = layers._measure_case(case, 0.0, torch.device("cpu"))
    rounds = len(found["seconds"]["triad"])
    assert rounds < FEWEST_PROBES <= found["contention"]["probes"]["number"]
