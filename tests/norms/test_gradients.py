"""Gradients in closed form (for RMSNorm, the paper's Eq. 9) against autograd in float64.

``a = W x`` are the summed inputs of an example, ``r`` is their root mean square, ``v = g * a / r + b`` is the output of
RMSNorm, ``d = dL/dv`` is the gradient of the loss L with respect to this output, and ``h = g * d``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from rmsexp import norms

N_IN, N, BATCH, EPS = 5, 8, 6, 1e-2
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def site_of(norm: norms.Norm, kernel_size: int | None = None) -> norms.Linear:
    site = norm.linear("a", N_IN, N, bias=False, shift=True, kernel_size=kernel_size).double()
    for i, parameter in enumerate(site.parameters()):
        parameter.data = parameter.data.nan_to_num(0.0) + 0.5 * draw(*parameter.shape, seed=10 + i)
    return site


def dot(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(-1, keepdim=True)


# --- functions that return the normalised value (for RMSNorm a / r) and dL/da


def rms_gradient(a: Tensor, h: Tensor, k: int, eps: float) -> tuple[Tensor, Tensor]:
    first = (torch.arange(a.shape[-1]) < k).to(a.dtype)
    r = (dot(first * a, a) / k + eps).sqrt()
    return a / r, h / r - first * a * dot(h, a) / (k * r**3)


def outside_gradient(a: Tensor, h: Tensor, k: int, eps: float) -> tuple[Tensor, Tensor]:
    first = (torch.arange(a.shape[-1]) < k).to(a.dtype)
    rho = (dot(first * a, a) / k).sqrt()
    q = rho + eps
    second = first * a * dot(h, a) / (k * rho * q**2)
    return a / q, h / q - torch.where(rho == 0, 0.0, second)


def ln_gradient(a: Tensor, h: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    centred = a - a.mean(-1, keepdim=True)
    s = (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    hat = centred / s
    return hat, (h - h.mean(-1, keepdim=True) - hat * dot(h, hat) / a.shape[-1]) / s


def l2_gradient(a: Tensor, h: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    q = (dot(a, a) + eps).sqrt()
    return a / q, h / q - a * dot(h, a) / q**3


ClosedForm = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
FORMS: dict[str, tuple[norms.Norm, ClosedForm]] = {
    "rms": (norms.RMS(name="rms", eps=EPS), partial(rms_gradient, k=N, eps=EPS)),
    "rms, 1 + weight": (norms.RMS(name="rms", eps=EPS, weight_offset=True), partial(rms_gradient, k=N, eps=EPS)),
    "rms, no gain": (norms.RMS(name="rms", eps=EPS, gain=False), partial(rms_gradient, k=N, eps=EPS)),
    "rms eps=0": (norms.RMS(name="rms", eps=0), partial(rms_gradient, k=N, eps=0)),
    "prms": (norms.PRMS(name="prms", eps=EPS, p=0.3), partial(rms_gradient, k=3, eps=EPS)),
    "rms outside": (norms.RMS(name="rms", eps=EPS, eps_inside=False), partial(outside_gradient, k=N, eps=EPS)),
    "prms outside": (
        norms.PRMS(name="prms", eps=EPS, p=0.3, k_rounding="floor", eps_inside=False),
        partial(outside_gradient, k=2, eps=EPS),
    ),
    "ln": (norms.LN(name="ln", eps=EPS), partial(ln_gradient, eps=EPS)),
    "l2": (norms.L2(name="l2", eps=EPS), partial(l2_gradient, eps=EPS)),
}


@pytest.mark.parametrize("form", FORMS)
def test_closed_form_gradients(form: str) -> None:
    norm, closed = FORMS[form]
    site = site_of(norm)
    x, d = draw(BATCH, N_IN, seed=1).requires_grad_(), draw(BATCH, N, seed=2)
    a = site.map(x, site.weight)
    a.retain_grad()
    site.norm(a).backward(d)
    weight = site.norm.weight
    assert (weight is None) == ("no gain" in form)
    gain = torch.ones(N).double() if weight is None else weight.detach() + ("1 + weight" in form)
    value, da = closed(a.detach(), gain * d)
    close(a.grad, da)
    close(site.weight.grad, da.T @ x.detach())
    close(x.grad, da @ site.weight.detach())
    if weight is not None:
        close(weight.grad, (d * value).sum(0))
    close(site.norm.bias.grad, d.sum(0))


@pytest.mark.parametrize("p", [1.0, 0.3])
def test_gradient_at_zero_with_eps_outside(p: float) -> None:
    layer = norms.RMSNorm(N, EPS, p=p, eps_inside=False).double()
    a = draw(3, N, seed=1)
    a[1, :4] = 0  # the statistic of pRMSNorm is zero, the row is not
    a[2] = 0
    a.requires_grad_()
    d = draw(3, N, seed=2)
    layer(a).backward(d)
    close(a.grad, outside_gradient(a.detach(), d, layer.k(N), EPS)[1])
    close(a.grad[2], d[2] / EPS)


@pytest.mark.parametrize("kernel_size", [None, 3], ids=["linear", "conv"])
def test_closed_form_gradients_of_weight_norm(kernel_size: int | None) -> None:
    site = site_of(norms.WN(name="wn"), kernel_size)
    effective = site.effective_weight()
    effective.retain_grad()
    x = draw(BATCH, N_IN, seed=1) if kernel_size is None else draw(2, N_IN, 5, 5, seed=1)
    y = site.map(x, effective)
    y.backward(draw(*y.shape, seed=2))
    v, dw, g = site.weight.detach().flatten(1), effective.grad.flatten(1), site.reparametrisation.gain
    length = v.norm(dim=1, keepdim=True)
    dg = dot(dw, v) / length
    close(g.grad, dg.squeeze(1))
    gain = g.detach().unsqueeze(1)
    close(site.weight.grad.flatten(1), gain / length * dw - gain * dg / length**2 * v)
