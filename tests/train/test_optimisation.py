"""Schedules, optimisers and clipping, compared with plain formulas."""

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.slopes import slopes_trainer
from torch import Tensor, nn

from rmsexp import config
from rmsexp.train.optim import CLIPPING, Adam, AdamConfig, AdamWConfig, TensorFlowAdam, TensorFlowAdamConfig
from rmsexp.train.randomness import stream
from rmsexp.train.schedule import Constant, Cosine, HoldThenDecay, WarmUp


@pytest.mark.parametrize("within", [0, 1, 499])
def test_the_paper_s_schedule_decays_per_epoch_in_the_second_half(within: int) -> None:
    schedule = config.job(["scale=paper"]).config.schedule
    for epoch in range(200):
        values = schedule.at(500 * epoch + within)
        expected = 1.0 if epoch <= 100 else (200 - epoch) / 100
        assert values == {"lr": pytest.approx(expected, abs=1e-12), "beta1": 0.9 if epoch < 100 else 0.5}


@pytest.mark.parametrize("after", [0, 1, 500, 10**6])
def test_after_the_last_step_the_values_do_not_change(after: int) -> None:
    schedule = HoldThenDecay(100_000, 500, 0.9, 0.5)
    assert schedule.at(100_000 + after) == schedule.at(99_999) == {"lr": pytest.approx(0.01), "beta1": 0.5}


@pytest.mark.parametrize(("steps", "period"), [(600, 10), (1800, 18), (7, 1), (10, 4), (3, 1), (21, 10)])
def test_in_schedules_of_any_length_the_rate_decreases_and_stays_positive(steps: int, period: int) -> None:
    values = [HoldThenDecay(steps, period, 0.9, 0.5).at(step) for step in range(2 * steps)]
    factors = [value["lr"] for value in values]
    assert factors[0] == 1
    assert 0 < min(factors) < 1
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors))
    assert [value["beta1"] for value in values] == sorted((value["beta1"] for value in values), reverse=True)


def gradients(steps: int, dtype: torch.dtype) -> Tensor:
    """Return random gradients ``(steps, 3, 4)``, whose columns have very different magnitudes."""
    scale = torch.tensor([1e-5, 1e-3, 1.0, 100.0], dtype=torch.float64)
    return (torch.randn(steps, 3, 4, generator=stream(0, "gradients"), dtype=torch.float64) * scale).to(dtype)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_adam_equals_its_formula_with_eps_inside_the_root(dtype: torch.dtype, rtol: float) -> None:
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


def test_adam_skips_parameters_without_gradient_and_counts_steps_per_parameter() -> None:
    """Each of two parameters moves as if it had its own optimiser, which is stepped only when there is a gradient."""
    together = [nn.Parameter(torch.ones(3, 4, dtype=torch.float64)) for _ in range(2)]
    apart = [nn.Parameter(torch.ones(3, 4, dtype=torch.float64)) for _ in range(2)]
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
    shared, separate = Adam(together, **options), [Adam([parameter], **options) for parameter in apart]
    shared.step()  # without any gradient it changes nothing
    for step, g in enumerate(gradients(6, torch.float64)):
        for index in (0, 1):
            absent = index == 0 and step in (0, 1, 4)
            together[index].grad, apart[index].grad = (None, None) if absent else (g.clone(), g.clone())
            if not absent:
                separate[index].step()
        shared.step()
        if step == 1:
            assert (together[0] == 1).all()
            assert not shared.state[together[0]]
        for a, b in zip(together, apart, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-14, atol=0)


# Adam with eps added to the root of the uncorrected v

TINY = torch.tensor([1e-9, 1e-8, 1e-7, 1.0], dtype=torch.float64)  # standard deviations of the columns; eps is 1e-8


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("beta2", [0.999, 0.98])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_uncorrected_adam_equals_its_formula(dtype: torch.dtype, rtol: float, beta2: float, swapped: bool) -> None:
    parameter, start = (nn.Parameter(torch.zeros(3, 4, dtype=kind)) for kind in (dtype, torch.float64))
    optimizer = TensorFlowAdam([parameter], lr=1.0, beta1=0.9, beta2=beta2, eps=1e-8, swapped=swapped)
    b1, b2 = (0.1, 1 - beta2) if swapped else (0.9, beta2)  # betas in the bias correction
    p, m, v = start.detach(), torch.zeros_like(start), torch.zeros_like(start)
    tiny = torch.randn(30, 3, 4, generator=stream(0, "tiny"), dtype=torch.float64) * TINY
    for t, g in enumerate(tiny.to(dtype), 1):
        lr = 0.003 / t
        optimizer.param_groups[0].update(lr=lr)
        parameter.grad = g.clone()
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == lr
        g = g.double()
        m, v = 0.9 * m + 0.1 * g, beta2 * v + (1 - beta2) * g * g
        p = p - lr * math.sqrt(1 - b2**t) / (1 - b1**t) * m / (torch.sqrt(v) + 1e-8)
        torch.testing.assert_close(parameter.detach().double(), p, rtol=rtol, atol=rtol * 1e-3)


# The schedules of the translation tasks


@pytest.mark.parametrize("warmup", [1, 7, 200])
def test_the_rate_rises_linearly_to_its_peak_and_falls_with_the_root_of_the_step(warmup: int) -> None:
    factors = [WarmUp(1000, warmup).at(step)["lr"] for step in range(1000)]
    assert factors[warmup - 1] == max(factors) == 1.0
    assert factors.count(1.0) == 1
    assert factors[: warmup - 1] == pytest.approx([number / warmup for number in range(1, warmup)])
    assert factors[4 * warmup - 1] == pytest.approx(0.5)
    assert all(later < earlier for earlier, later in itertools.pairwise(factors[warmup - 1 :]))


def test_a_constant_rate_may_rise_linearly_at_first() -> None:
    assert Constant(4, warmup=4).at(3)["lr"] == WarmUp(4, 4).at(3)["lr"] == 1
    assert [Constant(10, warmup=4).at(step)["lr"] for step in (*range(6), 10**6)] == [0.25, 0.5, 0.75, 1, 1, 1, 1]
    assert Constant(10).at(0) == {"lr": 1.0}


@pytest.mark.parametrize("decay", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("plain", [Constant(200), Constant(200, warmup=10), WarmUp(200, 10)], ids=str)
def test_the_rate_falls_linearly_to_zero_at_the_end(plain: Constant | WarmUp, decay: float) -> None:
    """With decay d, the factor of step s (from 0) of S is multiplied by min(1, (S - s) / (d S))."""
    decayed = dataclasses.replace(plain, decay=decay)
    for step in range(200):
        expected = plain.at(step)["lr"] * min(1.0, (200 - step) / (decay * 200))
        assert decayed.at(step)["lr"] == pytest.approx(expected, rel=1e-12)
    assert decayed.at(500)["lr"] == pytest.approx(plain.at(500)["lr"] / (decay * 200), rel=1e-12)
    assert 0 < decayed.at(500)["lr"] <= 1 / (decay * 200)


# Clipping in the training loop

LIMIT = 3.0


def limited(clipping: str, weight: float, bias: float) -> tuple[float, float]:
    """Return the norms of the weight's and the bias's gradients after clipping, from the formulas."""
    norm = math.hypot(weight, bias)
    if clipping == "per_tensor":
        return min(weight, LIMIT), min(bias, LIMIT)
    clipped = min(norm, LIMIT) if clipping == "global" else LIMIT * math.sqrt(norm) if norm > LIMIT**2 else norm
    return weight * clipped / norm, bias * clipped / norm


@pytest.mark.parametrize("norm", [1.5, 2.99, 3.01, 3.2, 8.99, 9.01, 400.0])
@pytest.mark.parametrize("clipping", CLIPPING)
def test_each_kind_of_clipping_below_and_above_its_limit(clipping: str, norm: float, tmp_path: Path) -> None:
    """``norm``: of both gradients together. The weight's alone is below the limit at 3.01 and above it at 3.2."""
    weight, bias = math.sqrt(norm**2 - 1), 1.0  # the gradient with respect to the bias is 1
    model, slopes = nn.Linear(3, 1), [[[0.6 * weight, 0.0, -0.8 * weight]]]
    trainer, files = slopes_trainer(slopes, tmp_path, model, clip=LIMIT, clipping=clipping)
    trainer.run()
    (recorded,) = [row["grad_norm"] for row in files.read_metrics()[0] if row["split"] == "train"]
    assert recorded == pytest.approx(norm, rel=1e-6)  # of the gradient before clipping
    expected = limited(clipping, weight, bias)
    assert model.weight.norm().item() == pytest.approx(expected[0], rel=1e-5)
    torch.testing.assert_close(model.weight.detach()[0], expected[0] * torch.tensor([-0.6, 0.0, 0.8]))
    assert model.bias.item() == pytest.approx(-expected[1], rel=1e-5)


def test_clipping_leaves_gradients_of_zero_at_zero() -> None:
    for clip in CLIPPING.values():
        gradients = [torch.zeros(3), torch.full((4,), 50.0)]
        clip(gradients, LIMIT, torch.tensor(100.0))
        assert not gradients[0].any()
        assert 0 < gradients[1].norm().item() < 100
        zeros = [torch.zeros(3)]
        clip(zeros, LIMIT, torch.tensor(0.0))
        assert not zeros[0].any()


# --- AdamW, and the cosine


def test_only_matrices_decay() -> None:
    optimizer = AdamWConfig(0.1, 0.95, 1e-8, beta1=0.8, weight_decay=0.5).optimizer([torch.zeros(2, 3), torch.zeros(3)])
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [(group["weight_decay"], [p.dim() for p in group["params"]]) for group in optimizer.param_groups] == [
        *((0.5, [2]), (0.0, [1])),
    ]
    assert {(group["lr"], group["betas"], group["eps"]) for group in optimizer.param_groups} == {
        (0.1, (0.8, 0.95), 1e-8)
    }


def test_gains_decay_if_they_shall() -> None:
    optimizer = AdamWConfig(0.1, 0.95, 1e-8, weight_decay=0.5, decay_gains=True).optimizer([torch.ones(3)])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5]


def test_muon_updates_inner_matrices_and_adamw_the_rest_also_after_a_restart() -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((4, 2), (5, 2), (2,))]
    gradients = [[torch.randn(p.shape, generator=generator) for p in start] for _ in range(4)]
    options: dict[str, Any] = {"beta1": 0.9, "weight_decay": 0.5}

    def trained(name: str, restart: bool = False) -> list[Tensor]:
        params = [p.clone().requires_grad_() for p in start]
        made = AdamWConfig(0.1, 0.95, 1e-8, name=name, **options)
        optimizer = made.optimizer(params, inside=[params[0], params[2]])
        for step, of_step in enumerate(gradients):
            if restart and step == 2:
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = made.optimizer(params, inside=[params[0], params[2]])
                optimizer.load_state_dict(state)
            for p, gradient in zip(params, of_step, strict=True):
                p.grad = gradient.clone()
            optimizer.step()
        return [p.detach() for p in params]

    muon, adamw = trained("muon"), trained("adamw")
    assert all(map(torch.equal, muon, trained("muon", restart=True)))
    assert all(map(torch.equal, muon[1:], adamw[1:]))
    alone = torch.optim.Muon([matrix := start[0].clone().requires_grad_()], 0.1, 0.5, adjust_lr_fn="match_rms_adamw")
    for gradient, *_ in gradients:
        matrix.grad = gradient.clone()
        alone.step()
    assert torch.equal(muon[0], matrix.detach())


def test_sgd_has_momentum() -> None:
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = AdamWConfig(0.1, 0.95, 1e-8, beta1=0.5, weight_decay=0.0, name="sgd").optimizer([parameter])
    for _ in range(2):
        parameter.grad = torch.ones(1)
        optimizer.step()
    assert parameter.item() == pytest.approx(-0.1 * (1 + 1.5))


def test_the_cosine_schedule() -> None:
    rates = [Cosine(110, 10, 0.1).at(step)["lr"] for step in range(130)]
    assert rates[:10] == pytest.approx([0.1 * number for number in range(1, 11)])
    for step in range(10, 110):
        assert rates[step] == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi * (step - 9) / 100)))
    assert rates[109:] == pytest.approx([0.1] * 21)
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[9:110]))


HOLD = {"steps": 10, "period": 1, "beta1": 0.9, "late_beta1": 0.5}
ADAM = {"lr": 0.1, "beta2": 0.9, "eps": 1e-8}
MISTAKES: list[tuple[str, Callable[..., object], dict[str, Any]]] = [  # the key that the error names, and a call
    *(("schedule.steps", make, {"steps": 0}) for make in (partial(HoldThenDecay, **HOLD), Constant)),
    ("schedule.steps", partial(WarmUp, warmup=5), {"steps": 0}),
    ("schedule.period", partial(HoldThenDecay, **HOLD), {"period": 0}),
    *(
        ("schedule.period", partial(HoldThenDecay, **HOLD), {"steps": steps, "period": period})
        for steps, period in ((1, 1), (2, 1), (20, 10), (19, 10))
    ),
    *(("schedule.beta1", partial(HoldThenDecay, **HOLD), {"beta1": value}) for value in (1.0, -0.1)),
    ("schedule.late_beta1", partial(HoldThenDecay, **HOLD), {"late_beta1": 1.0}),
    ("schedule.decay", partial(Constant, 10), {"decay": 0.0}),
    *(("schedule.warmup", partial(make, 10), {"warmup": warmup}) for make in (Constant, WarmUp) for warmup in (0, 11)),
    ("schedule.warmup", Cosine, {"steps": 10, "warmup": 10}),
    *(("optim.lr", partial(AdamConfig, **ADAM), {"lr": value}) for value in (0, math.nan)),
    *((f"optim.{key}", partial(AdamConfig, **ADAM), {key: value}) for key, value in (("beta2", 1.0), ("eps", 0))),
    ("optim.clipping", partial(AdamConfig, **ADAM), {"clipping": "globl"}),
    *(
        (f"optim.{key}", partial(TensorFlowAdamConfig, **ADAM), {key: value})
        for key, value in (("lr", -1.0), ("beta1", 1.0), ("beta2", 1.0), ("eps", 0), ("clip", 0.0))
    ),
]


@pytest.mark.parametrize(("key", "make", "options"), MISTAKES)
def test_invalid_options_are_refused(key: str, make: Callable[..., object], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{key}"):
        make(**options)
