"""The interface between models and norms, with every norm of the package."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from helpers import sites
from helpers.sites import BATCH, EMBED, EVERY, HIDDEN, NORMS, TIME, by_formula, close, draw, fill, without_gradient
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp import norms
from rmsexp.train.optim import AdamWConfig

# --- a post-norm block, as of the Transformer: value and plain


class Block(nn.Module):
    def __init__(self, norm: norms.Norm) -> None:
        super().__init__()
        self.up = norm.plain("up", EMBED, 2 * EMBED)
        self.down = norm.plain("down", 2 * EMBED, EMBED)
        self.norm = norm.value("out", EMBED)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.norm(x + self.down(torch.relu(self.up(x))), mask=mask)


@EVERY
def test_post_norm_block(name: str) -> None:
    block, x = fill(Block(NORMS[name])), draw(BATCH, TIME, EMBED)
    y = block(x)
    y.backward(draw(*y.shape, seed=1))
    # norms that subtract the batch mean cancel a bias before them
    assert without_gradient(block) == ({"down.bias"} if name in ("bn", "mean_only_bn") else set())
    inner = torch.relu(F.linear(x, sites.weight_of(block.up), block.up.bias))
    residual = x + F.linear(inner, sites.weight_of(block.down), block.down.bias)
    if name in ("none", "wn"):
        close(y, residual)
        assert not list(block.norm.parameters())
    else:  # batch norms take each position of each sequence as an example
        close(y, by_formula(name, block.norm, residual.flatten(0, 1)).view_as(y))
    gain = {"reparametrisation.gain"} if name in ("wn", "mean_only_bn") else set()
    assert {n for n, _ in block.up.named_parameters()} == {"weight", "bias"} | gain
    assert gain or block.up.effective_weight() is block.up.weight


# --- parameters of a site

PARAMETERS = {  # parameters other than weight, bias (before the norm) and norm.bias (after the norm)
    "none": set(),
    "wn": {"reparametrisation.gain"},
    "mean_only_bn": {"reparametrisation.gain"},
    "nonparametric_ln": set(),
    "rms+gain=false": set(),
    "dyt": {"norm.weight", "norm.alpha"},
    "derf": {"norm.weight", "norm.alpha", "norm.offset"},
    **{name: {"norm.weight"} for name in ("bn", "ln", "rms", "prms", "l2")},
}
SHIFTED = {  # the values of ``shift`` with which there is a bias after the norm
    **dict.fromkeys(("bn", "mean_only_bn", "ln", "dyt", "derf"), (None, True)),
    **dict.fromkeys(("rms", "rms+gain=false", "prms", "l2"), (True,)),
    **dict.fromkeys(("none", "wn", "nonparametric_ln"), ()),
}


@EVERY
@pytest.mark.parametrize("shift", [None, True, False])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_parameters_of_a_site(name: str, shift: bool | None, bias: bool) -> None:
    for kernel_size, shape in ((None, (HIDDEN, EMBED)), (3, (HIDDEN, EMBED, 3, 3))):
        site = NORMS[name].linear("a", EMBED, HIDDEN, bias=bias, shift=shift, kernel_size=kernel_size)
        # for norms that do not act on activations, biases before and after the norm are one and the same
        has_bias = bias or (bool(shift) and name in ("none", "wn"))
        expected = {"weight"} | PARAMETERS[name] | ({"bias"} if has_bias else set())
        expected |= {"norm.bias"} if shift in SHIFTED[name] else set()
        assert {n for n, _ in site.named_parameters()} == expected
        assert site.weight.isnan().all()  # until it is initialised
        assert all(p.isfinite().all() for n, p in site.named_parameters() if n != "weight")
        shapes = {"weight": shape, "norm.alpha": (1,), "norm.offset": (1,)}
        assert all(p.shape == shapes.get(n, (HIDDEN,)) for n, p in site.named_parameters())


@EVERY
def test_batch_norm_has_no_shift_if_the_model_adds_a_bias(name: str) -> None:
    sites = [NORMS[name].linear("a", EMBED, HIDDEN, then_bias=then_bias) for then_bias in (False, True)]
    without_bias, with_bias = ({n for n, _ in site.named_parameters()} for site in sites)
    assert without_bias - with_bias == ({"norm.bias"} if name == "bn" else set())
    assert with_bias <= without_bias


@EVERY
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_an_optional_layer_is_plain(name: str, bias: bool) -> None:
    plain, optional = (
        fill(method("a", EMBED, HIDDEN, bias=bias)) for method in (NORMS[name].plain, NORMS[name].optional)
    )
    close(optional.state_dict(), plain.state_dict())
    close(optional(draw(BATCH, EMBED)), plain(draw(BATCH, EMBED)))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_batch_norm_everywhere_moves_the_bias_of_an_optional_layer_after_the_norm(bias: bool) -> None:
    site = fill(norms.BN(name="bn", everywhere=True).optional("a", EMBED, HIDDEN, bias=bias))
    assert {n for n, _ in site.named_parameters()} == {"weight", "norm.weight"} | ({"norm.bias"} if bias else set())
    x = draw(BATCH, EMBED)
    close(site(x), sites.with_gain_and_shift(site.norm, sites.FORMULAS["bn"](x @ site.weight.T)))


@pytest.mark.parametrize("gain", [None, 0.1])
def test_gains_of_batch_norm_start_at_the_initial_gain(gain: float | None) -> None:
    norm = norms.BN(name="bn", everywhere=True, **({} if gain is None else {"initial_gain": gain}))
    sites = (norm.linear("a", 3, 4), norm.linear("a", 3, 4, kernel_size=3), norm.optional("a", 3, 4))
    for layer in (norm.value("a", 4), *(site.norm for site in sites)):
        close(layer.weight, torch.full((4,), gain or 1.0))
        close(layer.bias, torch.zeros(4))


@pytest.mark.parametrize("family", [norms.RMS, norms.PRMS, norms.L2])
@pytest.mark.parametrize("bias", [True, False])
def test_bias_of_rms_overrides_the_shift_of_the_site(family: type[norms.RMS], bias: bool) -> None:
    norm = family(name="rms", bias=bias)
    normalisers = [norm.value("a", 3), *(norm.linear("a", 3, 3, shift=shift).norm for shift in (None, True, False))]
    assert [n.bias is not None for n in normalisers] == [bias] * 4


@pytest.mark.parametrize("name", ["dyt", "derf"])
def test_parameters_of_pointwise_functions_at_the_start(name: str) -> None:
    layer = NORMS[name].linear("a", 3, 4).norm
    numbers = {"alpha": torch.tensor([0.5])} | ({} if name == "dyt" else {"offset": torch.zeros(1)})
    close(dict(layer.state_dict()), {"weight": torch.ones(4), "bias": torch.zeros(4), **numbers})
    assert replace(NORMS[name], alpha=0.2).value("a", 3).alpha.item() == pytest.approx(0.2)
    *_, undecayed = AdamWConfig(lr=0.1, beta2=0.95, eps=1e-8).optimizer(layer.parameters()).param_groups
    assert (undecayed["weight_decay"], len(undecayed["params"])) == (0.0, len(list(layer.parameters())))


@pytest.mark.parametrize("name", ["none", "wn", "mean_only_bn", "ln", "rms", "rms, weight offset"])
@pytest.mark.parametrize("kernel_size", [None, 3], ids=["linear", "conv"])
def test_standardise_makes_outputs_standard(name: str, kernel_size: int | None) -> None:
    site = (
        {**NORMS, "rms, weight offset": norms.RMS(name="rms", weight_offset=True)}[name]
        .linear("a", 3, 4, shift=True, kernel_size=kernel_size, data_init=True)
        .double()
    )
    site.weight.data = draw(*site.weight.shape)
    x, axes = (2 + draw(50, 3), 0) if kernel_size is None else (2 + draw(6, 3, 5, 5), (0, 2, 3))
    y = site(x).detach()
    site.standardise_(y.mean(axes), y.std(axes, unbiased=False))
    close(site(x).mean(axes), torch.zeros(4, dtype=torch.float64))
    close(site(x).var(axes, unbiased=False), torch.ones(4, dtype=torch.float64))


def test_default_options_include_those_made_by_a_factory() -> None:
    norm = norms.RMS(name="own", eps=1e-3, axes=[1, 2, 3])
    assert norm.as_config(defaults=True) == norms.RMS(name="own").as_config()
    assert norm.as_config()["axes"] == [1, 2, 3]


# --- wrong options and arguments

MISTAKES: list[tuple[str, Callable[[], object]]] = [  # what the error names, and a call
    ("norm.p", lambda: norms.PRMS(name="prms", p=0.0)),
    ("norm.p", lambda: norms.PRMS(name="prms", p=1.5)),
    ("norm.impl", lambda: norms.RMS(name="rms", impl="eagr")),
    ("norm.k_rounding", lambda: norms.PRMS(name="prms", k_rounding="round")),
    ("norm.weight_offset", lambda: norms.RMS(name="rms", gain=False, weight_offset=True)),
    ("norm.padding", lambda: norms.BN(name="bn", padding="exlude")),
    ("norm.eval", lambda: norms.MeanOnlyBN(name="mean_only_bn", eval="population")),
    ("norm.momentum", lambda: norms.BN(name="bn", momentum=0.0)),
    ("norm.min_examples", lambda: norms.BN(name="bn", min_examples=0)),
    ("norm.initial_gain", lambda: norms.BN(name="bn", initial_gain=0.0)),
    ("norm.initial_gain", lambda: norms.BN(name="bn", initial_gain=0.1).linear("head", 3, 4, data_init=True)),
    ("norm.axes", lambda: norms.LN(name="ln", axes=[1])),
    *(
        ("norm.axes", partial(family, name="norm", axes=[1, 2, 3], impl="fused"))
        for family in (norms.LN, norms.NonparametricLN, norms.RMS, norms.PRMS, norms.L2)
    ),
    ("norm.eps", lambda: norms.LN(name="ln", eps=-1.0)),
    ("norm.eps", lambda: norms.BN(name="bn", eps=-1.0)),
    ("norm.eps", lambda: norms.WN(name="wn", eps=float("nan"))),
    ("norm.inverse_gain", lambda: norms.WN(name="wn", inverse_gain=True).linear("head", 3, 4, data_init=True)),
    *(("norm.alpha", partial(norms.DyT, name="dyt", alpha=alpha)) for alpha in (0.0, -1.0, math.nan, math.inf)),
    ("alpha", lambda: norms.DynamicErf(4, 0.0)),
    ("head", lambda: NORMS["nonparametric_ln"].linear("head", 3, 4).standardise_(torch.ones(4), torch.ones(4))),
]


@pytest.mark.parametrize(("name", "call"), MISTAKES)
def test_mistakes_raise_value_errors_that_name_the_key(name: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=name):
        call()
