"""Replay of norm layers: which calls are recorded, and what their repetition computes."""

from __future__ import annotations

import pytest
import torch
from helpers.reading_and_retrieval import make
from helpers.sites import close

from rmsexp import config
from rmsexp.measure import replay
from rmsexp.norms import Site
from rmsexp.train.randomness import StreamNoise


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
