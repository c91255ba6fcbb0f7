"""Schedules and optimisers against plain formulas."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rmsexp import config
from rmsexp.train.optim import Adam, AdamConfig
from rmsexp.train.randomness import stream
from rmsexp.train.schedule import HoldThenDecay


@pytest.mark.parametrize("within", [0, 1, 499])
def test_the_paper_s_schedule(within: int) -> None:
    schedule = config.job(["scale=paper"]).config.schedule
    for epoch in range(200):
        values = schedule.at(500 * epoch + within)
        expected = 1.0 if epoch <= 100 else (200 - epoch) / 100
        assert values == {"lr": pytest.approx(expected, abs=1e-12), "beta1": 0.9 if epoch < 100 else 0.5}
    for epoch, factor in ((100, 1.0), (101, 0.99), (199, 0.01)):
        assert schedule.at(500 * epoch + within)["lr"] == pytest.approx(factor, abs=1e-12)


@pytest.mark.parametrize("after", [0, 1, 500, 10**6])
def test_after_the_recipe_s_end_its_last_values_stay(after: int) -> None:
    schedule = HoldThenDecay(100_000, 500, 0.9, 0.5)
    assert schedule.at(100_000 + after) == schedule.at(99_999) == {"lr": pytest.approx(0.01), "beta1": 0.5}


@pytest.mark.parametrize(("steps", "period"), [(600, 10), (1800, 18), (7, 1), (10, 4), (1, 1), (1, 5)])
def test_shorter_schedules_hold_fall_and_never_stand_still(steps: int, period: int) -> None:
    values = [HoldThenDecay(steps, period, 0.9, 0.5).at(step) for step in range(2 * steps)]
    factors = [value["lr"] for value in values]
    assert factors[0] == 1
    assert min(factors) > 0
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors))
    assert [value["beta1"] for value in values] == sorted((value["beta1"] for value in values), reverse=True)


@pytest.mark.parametrize(
    ("key", "value"), [("steps", 0), ("period", 0), ("beta1", 1.0), ("beta1", -0.1), ("late_beta1", 1.0)]
)
def test_schedules_that_cannot_be(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"schedule.{key} must"):
        HoldThenDecay(**({"steps": 10, "period": 1, "beta1": 0.9, "late_beta1": 0.5} | {key: value}))


def gradients(steps: int, dtype: torch.dtype) -> Tensor:
    """``(steps, 3, 4)``, of very different sizes."""
    scale = torch.tensor([1e-5, 1e-3, 1.0, 100.0], dtype=torch.float64)
    return (torch.randn(steps, 3, 4, generator=stream(0, "gradients"), dtype=torch.float64) * scale).to(dtype)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_adam_is_the_plain_formula_with_eps_inside_the_root(dtype: torch.dtype, rtol: float) -> None:
    parameter = nn.Parameter(torch.zeros(3, 4, dtype=dtype))
    optimizer = Adam([parameter], lr=1.0, beta1=0.9, beta2=0.999, eps=1e-8)
    p = m = v = torch.zeros(3, 4, dtype=torch.float64)
    for t, g in enumerate(gradients(50, dtype), 1):
        lr, beta1 = (0.003, 0.9) if t <= 25 else (0.002, 0.5)
        optimizer.param_groups[0].update(lr=lr, beta1=beta1)
        parameter.grad = g.clone()
        optimizer.step()
        g = g.double()
        m, v = beta1 * m + (1 - beta1) * g, 0.999 * v + (1 - 0.999) * g * g
        p = p - lr * (m / (1 - beta1**t)) / torch.sqrt(v / (1 - 0.999**t) + 1e-8)
        torch.testing.assert_close(parameter.detach().double(), p, rtol=rtol, atol=rtol * 0.1)


@pytest.mark.parametrize(("eps", "equal"), [(1e-30, True), (1e-8, False)])
def test_adam_beside_torch_s(eps: float, equal: bool) -> None:
    ours, theirs = (nn.Parameter(torch.zeros(3, 4, dtype=torch.float64)) for _ in range(2))
    optimizers = (
        Adam([ours], lr=0.01, beta1=0.9, beta2=0.999, eps=eps),
        torch.optim.Adam([theirs], lr=0.01, betas=(0.9, 0.999), eps=eps),
    )
    for g in gradients(20, torch.float64):
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = g.clone()
            optimizer.step()
    assert torch.allclose(ours, theirs, rtol=1e-9) == equal
    assert torch.allclose(ours[:, 3], theirs[:, 3], rtol=1e-6)  # large gradients do not see eps


def test_adam_goes_on_from_its_state(tmp_path: Path) -> None:
    first, second = (nn.Parameter(torch.ones(3, 4)) for _ in range(2))
    one = Adam([first], lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8)
    all_gradients = gradients(8, torch.float32)
    for g in all_gradients[:4]:
        first.grad = g.clone()
        one.step()
    torch.save({"optimizer": one.state_dict(), "p": first.detach()}, tmp_path / "x.pt")
    saved = torch.load(tmp_path / "x.pt", weights_only=True)
    two = Adam([second], lr=5.0, beta1=0.1, beta2=0.5, eps=1.0)
    two.load_state_dict(saved["optimizer"])
    second.data.copy_(saved["p"])
    for g in all_gradients[4:]:
        for parameter, optimizer in ((first, one), (second, two)):
            parameter.grad = g.clone()
            optimizer.step()
        assert torch.equal(first, second)
    assert two.state[second]["step"] == 8


def test_adam_skips_what_has_no_gradient_and_counts_each_parameter_s_own_steps() -> None:
    """A parameter whose first gradient comes late moves as one of a new optimiser, and the others as before."""
    together = [nn.Parameter(torch.ones(3, 4, dtype=torch.float64)) for _ in range(2)]
    apart = [nn.Parameter(torch.ones(3, 4, dtype=torch.float64)) for _ in range(2)]
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
    shared, own = Adam(together, **options), [Adam([parameter], **options) for parameter in apart]
    for step, g in enumerate(gradients(6, torch.float64)):
        for index in (0, 1):
            absent = index == 0 and step in (0, 1, 4)
            together[index].grad, apart[index].grad = (None, None) if absent else (g.clone(), g.clone())
            if not absent:
                own[index].step()
        shared.step()
        if step == 1:
            assert (together[0] == 1).all()
            assert not shared.state[together[0]]
        for a, b in zip(together, apart, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-14, atol=0)


def test_adam_with_no_gradient_at_all_does_nothing() -> None:
    parameter = nn.Parameter(torch.ones(3))
    Adam([parameter], lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8).step()
    assert (parameter == 1).all()


@pytest.mark.parametrize(("key", "value"), [("lr", 0), ("lr", math.nan), ("beta2", 1.0), ("eps", 0)])
def test_rates_that_cannot_be(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"optim.{key} must"):
        AdamConfig(**({"lr": 0.1, "beta2": 0.9, "eps": 1e-8} | {key: value}))
