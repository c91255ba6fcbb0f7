"""Batch norm in recurrences: statistics for each time step, masks, running statistics, evaluation, saving."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rmsexp import norms

N, BATCH, TIME, MIN_EXAMPLES = 3, 12, 5, 4
LENGTHS = torch.tensor([1, 1, 1, 2, 2, 2, 2, 2, 3, 4, 5, 5])  # so 12, 9, 4, 3, 2 examples at the five time steps
MASK = torch.arange(TIME) < LENGTHS.unsqueeze(1)
close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return 1 + 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer_of(family: type[norms.BN | norms.MeanOnlyBN] = norms.BN, **options: object) -> norms.BatchNorm:
    layer = family(name="bn", **{"min_examples": MIN_EXAMPLES, **options}).value("a", N).double()
    for i, parameter in enumerate(layer.parameters()):
        parameter.data += 0.3 * draw(N, seed=20 + i)
    return layer


def trained(batches: int = 3, **options: object) -> norms.BatchNorm:
    layer = layer_of(**options)
    for seed in range(batches):
        layer(draw(BATCH, TIME, N, seed=seed), mask=MASK, steps=range(TIME))
    return layer


def formula(layer: norms.BatchNorm, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return (x - mean) / (var + layer.eps).sqrt() * layer.weight + layer.bias


def test_joint_statistics_exclude_padding() -> None:
    mask, x, layer = MASK, draw(BATCH, TIME, N), layer_of()
    y, valid = layer(x, mask=mask), x[mask]
    close(y, formula(layer, x, valid.mean(0), valid.var(0, unbiased=False)))
    close(layer.running_mean, 0.1 * valid.mean(0, keepdim=True))
    close(layer.running_var, 0.9 + 0.1 * valid.var(0, keepdim=True))
    flat = layer_of()
    close(flat(x.flatten(0, 1), mask=mask.flatten())[mask.flatten()], y[mask])


def test_a_mask_of_positions_masks_all_heads() -> None:
    mask, x, layer = MASK, draw(BATCH, TIME, 2, N), layer_of()
    y, valid = layer(x, mask=mask), x[mask].flatten(0, 1)
    close(y, formula(layer, x, valid.mean(0), valid.var(0, unbiased=False)))


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_state_loads_into_a_module_with_fewer_steps(steps: int) -> None:
    saved, loaded = trained(), layer_of()
    if steps:
        loaded(draw(BATCH, steps, N, seed=8), steps=range(steps))
    loaded.load_state_dict(copy.deepcopy(saved.state_dict()))
    for mode in (False, True):
        x = draw(BATCH, TIME + 1, N, seed=9)
        saved.train(mode), loaded.train(mode)
        close(loaded(x, steps=range(TIME + 1)), saved(x, steps=range(TIME + 1)))
    assert all(torch.equal(saved.state_dict()[name], value) for name, value in loaded.state_dict().items())


def test_state_loads_into_a_module_with_more_steps_and_of_another_dtype() -> None:
    loaded = layer_of()
    loaded(draw(BATCH, TIME + 3, N), steps=range(TIME + 3))
    loaded.load_state_dict(trained().state_dict())
    close(loaded.state_dict(), trained().state_dict())
    loaded.load_state_dict(trained().float().state_dict())
    assert loaded.running_mean.dtype == loaded.running_var.dtype == torch.float64
    assert loaded.count.dtype == torch.int64


WRONG_STATES: dict[str, dict[str, Tensor | None]] = {
    "more features": {name: torch.zeros(TIME, N + 1) for name in ("running_mean", "running_var")},
    "another number of steps for the variance": {"running_var": torch.zeros(TIME + 1, N)},
    "no count": {"count": None},
}


@pytest.mark.parametrize("wrong", WRONG_STATES)
def test_a_state_that_does_not_fit_leaves_the_running_statistics_unchanged(wrong: str) -> None:
    layer = layer_of()
    layer(draw(BATCH, 2, N), steps=range(2))
    before = copy.deepcopy(dict(layer.named_buffers()))
    state = {**trained().state_dict(), **WRONG_STATES[wrong]}
    with pytest.raises(RuntimeError, match=r"(size mismatch|Missing key)"):
        layer.load_state_dict({name: value for name, value in state.items() if value is not None})
    close(dict(layer.named_buffers()), before)


@pytest.mark.parametrize("case", ["no example", "no position", "no time step", "only padding", "no positions of maps"])
def test_a_batch_without_vectors_leaves_the_running_statistics_unchanged(case: str) -> None:
    maps, options = case == "no positions of maps", dict[str, Any]()
    layer = norms.BatchNorm(N, maps=maps).double()
    layer(draw(BATCH, N, 2, 2) if maps else draw(BATCH, N))
    before = copy.deepcopy(layer.state_dict())
    shapes = {"no example": (0, N), "no position": (BATCH, 0, N), "no time step": (BATCH, 0, N)}
    shape = {**shapes, "no positions of maps": (BATCH, N, 0, 2)}.get(case)
    x = draw(*(shape or (BATCH, TIME, N))).requires_grad_()
    if case == "no time step":
        options["steps"] = range(0)
    if case == "only padding":
        options["mask"] = torch.zeros(BATCH, TIME, dtype=torch.bool)
    y = layer(x, **options)
    y.sum().backward()
    assert y.shape == x.shape
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    close(layer.state_dict(), before)


@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_running_statistics_in_float16_equal_those_of_torch(scale: float) -> None:
    """With scale 200, the variance of a batch exceeds what float16 holds; its tenth, which is added, does not."""
    layer, reference = norms.BatchNorm(N).half(), nn.BatchNorm1d(N).half()
    for seed in range(3):
        x = (scale * draw(64, N, seed=seed)).half()
        layer(x), reference(x)
    step = torch.finfo(torch.float16).eps
    torch.testing.assert_close(layer.running_mean[0], reference.running_mean, rtol=4 * step, atol=step * scale)
    torch.testing.assert_close(layer.running_var[0], reference.running_var, rtol=4 * step, atol=step)


def test_evaluation_in_float16_computes_in_float32() -> None:
    """The eps of a variance of 0 is below what float16 holds, and its root would be infinite."""
    layer = norms.BatchNorm(N, eps=1e-8).half().eval()
    layer.running_var.zero_()
    x = draw(4, N).half()
    torch.testing.assert_close(layer(torch.zeros_like(x)), torch.zeros_like(x))
    layer.running_var.fill_(2.0)
    torch.testing.assert_close(layer(x), (x.float() / 2**0.5).half(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("steps", [None, range(TIME)], ids=["joint", "per-step"])
def test_low_precision_input_has_float32_statistics(steps: range | None, dtype: torch.dtype) -> None:
    layer, x = layer_of().float(), draw(BATCH, TIME, N).to(dtype)
    y = layer(x, steps=steps)
    assert y.dtype == dtype
    assert layer.running_mean.dtype == torch.float32
    exact = copy.deepcopy(layer).double()(x.double(), steps=steps)
    torch.testing.assert_close(y.double(), exact, rtol=torch.finfo(dtype).eps * 4, atol=1e-5)
