"""Layers of the benchmark, and replay of norm layers: which calls are recorded, and what their repetition computes."""

import pytest
import torch
from helpers.reading_and_retrieval import make
from helpers.sites import close

from rmsexp import config
from rmsexp.measure import layers, replay
from rmsexp.measure.layers import LayerPass, norm_cases
from rmsexp.norms import Site
from rmsexp.records.record import FEWEST_PROBES
from rmsexp.train.randomness import StreamNoise


def test_a_pass_computes_the_gradients_of_input_and_parameters_and_deletes_them() -> None:
    layer = torch.nn.Linear(3, 2)
    x, gradient = torch.arange(12.0).reshape(4, 3).requires_grad_(), torch.arange(8.0).reshape(4, 2)
    leaves, recorded = [x, *layer.parameters()], []
    for leaf in leaves:
        leaf.register_post_accumulate_grad_hook(lambda leaf: recorded.append((leaf, leaf.grad)))
    layer_pass = LayerPass(layer, x, gradient, layer.parameters())
    for _ in range(2):  # the second would add to a gradient left by the first
        layer_pass.take(0, ())
        gradients = {id(leaf): value for leaf, value in recorded}
        expected = torch.autograd.grad(layer(x), leaves, gradient)
        assert all(torch.equal(gradients[id(leaf)], value) for leaf, value in zip(leaves, expected, strict=True))
        assert [leaf.grad for leaf in leaves] == [None] * 3
        recorded.clear()


def test_all_layers_of_a_norm_compute_the_same_function() -> None:
    both, forward, added = norm_cases("4x32", torch.float64, torch.device("cpu"))
    x = both.layers["rms eager"].x
    assert torch.equal(forward.layers["copy"].layer(x), x)
    outputs = {name: layer_pass.layer(x) for name, layer_pass in both.layers.items()}
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
    case = norm_cases("4x32", torch.float32, torch.device("cpu"))[1]
    found = layers._measure_case(case, 0.0, torch.device("cpu"))
    rounds = len(found["seconds"]["copy"])
    assert rounds < FEWEST_PROBES <= found["contention"]["probes"]["number"]


# --- replay of the calls that training steps make


@pytest.mark.usefixtures("small_synthetic_data")
def test_the_recorded_calls_are_those_of_the_norms() -> None:
    """A GRU normalises two projections of its whole input once, and two projections of its state at each time step."""
    task, model = make("order_embedding", "norm=rms")
    batch = task.batches(0)[0]
    with replay.record_calls(model) as calls:
        task.objective(model, batch, StreamNoise(0, "noise"))
    time = batch.tokens.shape[1] if hasattr(batch, "tokens") else batch[0].shape[1]
    shapes = [tuple(call.x.shape) for call in calls]
    assert shapes == [(9, time, 12), (9, time, 6), *[(9, 12), (9, 6)] * time]
    _, without_norm = make("order_embedding", "norm=none")
    with replay.record_calls(without_norm) as calls:
        task.objective(without_norm, batch, StreamNoise(0, "noise"))
    assert calls == []


def test_inputs_of_equal_shape_get_gradients_of_their_own() -> None:
    """Autograd does not add up the gradients of several calls, as it would for one input, and keeps none."""
    norm = config.job(["norm=rms"]).norm.value("a", 4)
    with replay.record_calls(norm) as calls:
        for _ in range(3):
            norm(torch.ones(2, 4))
    repeated = replay.Replay([calls], lambda shape, _: torch.ones(shape))
    received: list[torch.Tensor] = []
    inputs = [call.x for call in repeated._steps[0]]
    for x in inputs:
        x.register_hook(lambda gradient: received.append(gradient.clone()))
    repeated.take(0, None)
    assert len({x.data_ptr() for x in inputs}) == 1
    assert len(received) == 3
    assert all(torch.equal(gradient, received[0]) for gradient in received)
    assert all(x.grad is None for x in inputs)


def test_inputs_have_the_order_of_axes_of_the_training_step() -> None:
    norm = config.job(["norm=rms"]).norm.normaliser(Site("a", 4, feature_maps=True))
    x = torch.ones(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    with replay.record_calls(norm) as calls:
        norm(x)
        norm(x.contiguous())
    drawn = replay.Replay([calls], lambda shape, _: torch.rand(shape))
    assert [call.x.stride() for call in drawn._steps[0]] == [x.stride(), x.contiguous().stride()]
    assert [call.gradient.stride() for call in drawn._steps[0]] == [x.stride(), x.contiguous().stride()]


def test_repeated_layers_compute_the_same_as_in_the_model() -> None:
    norms = torch.nn.Sequential(config.job(["norm=ln"]).norm.value("a", 4), config.job(["norm=rms"]).norm.value("b", 4))
    x = torch.arange(12.0).reshape(3, 4)
    with replay.record_calls(norms) as calls:
        norms(x)
    outputs: list[torch.Tensor] = []
    handles = [layer.register_forward_hook(lambda _layer, _inputs, output: outputs.append(output)) for layer in norms]
    repeated = replay.Replay([calls, calls[:1]], lambda shape, dtype: x.to(dtype).reshape(shape))
    repeated.take(4, None)
    close(torch.stack(outputs), torch.stack([layer(x) for layer in norms]))
    outputs.clear()
    repeated.take(5, None)  # the second of the recorded steps, which has one call
    assert len(outputs) == 1
    assert all(parameter.grad is None for parameter in norms.parameters())
    for handle in handles:
        handle.remove()
