"""Forward-mode derivatives and the transforms of ``torch.func``: right for eager norms, refused by fused ones."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers.sites import close, draw, fill
from torch import Tensor, func, nn
from torch.autograd import forward_ad

from rmsexp import norms
from rmsexp.models.recurrent import GRU

EPS = 1e-2  # large, so that it matters whether eps is inside or outside the root
ROWS, MAPS = (2, 3), (2, 3, 1, 4)
LAYERS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "ln": (norms.LayerNorm, ROWS),
    "ln, maps": (partial(norms.LayerNorm, axes=(2, 3)), MAPS),
    "rms": (partial(norms.RMSNorm, bias=True), ROWS),
    "rms, 1 + weight": (partial(norms.RMSNorm, weight_offset=True), ROWS),
    "rms, outside": (partial(norms.RMSNorm, eps_inside=False), ROWS),
    "rms, maps": (partial(norms.RMSNorm, bias=True, axes=(2, 3)), MAPS),
    "rms, all channels": (partial(norms.RMSNorm, axes=(1, 2, 3)), MAPS),
    "prms": (partial(norms.RMSNorm, p=0.3), ROWS),
    "prms, maps": (partial(norms.RMSNorm, p=0.3, eps_inside=False, axes=(2, 3)), MAPS),
    "l2": (partial(norms.L2Norm, elementwise_affine=False), ROWS),
}


def layer_and_input(name: str, impl: str) -> tuple[nn.Module, Tensor]:
    make, shape = LAYERS[name]
    return fill(make(3, EPS, impl=impl)), draw(*shape)


@pytest.mark.parametrize("name", LAYERS)
def test_derivatives_equal_finite_differences(name: str) -> None:
    """This holds for both modes, and for second derivatives."""
    layer, x = layer_and_input(name, "eager")
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (x, *layer.parameters())]

    def output(x: Tensor, *parameters: Tensor) -> Tensor:
        named = zip(dict(layer.named_parameters()), parameters, strict=True)
        return func.functional_call(layer, dict(named), (x,), {"slope": 0.1})

    assert torch.autograd.gradcheck(output, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(output, leaves, check_fwd_over_rev=True)


# each calls a transform with a layer, its input, and a tangent of the input
TRANSFORMS: dict[str, Callable[[nn.Module, Tensor, Tensor], Any]] = {
    "jvp": lambda layer, x, tangent: func.jvp(layer, (x,), (tangent,)),
    "jvp in no_grad": lambda layer, x, tangent: func.jvp(torch.no_grad()(layer), (x,), (tangent,)),
    "jacrev": lambda layer, x, tangent: func.jacrev(layer)(x),  # noqa: ARG005
    "vmap": lambda layer, x, tangent: func.vmap(layer)(torch.stack([x, tangent])),
    "vmap of grad": lambda layer, x, tangent: func.vmap(func.grad(lambda row: layer(row).pow(3).sum()))(
        torch.stack([x, tangent])
    ),
    "functionalize": lambda layer, x, tangent: func.functionalize(layer)(x + tangent),
}


@pytest.mark.slow
@pytest.mark.usefixtures("fused_kernels")
@pytest.mark.parametrize("name", ["ln", "rms, maps", "prms"])
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of vmap, which calls the operator for each row
def test_fused_norms_compute_transforms_as_eager_norms_do_or_refuse_them(name: str, transform: str) -> None:
    """A derivative that the fused norms cannot compute is an error, never zero."""
    (eager, x), (fused, _) = layer_and_input(name, "eager"), layer_and_input(name, "fused")
    expected = TRANSFORMS[transform](eager, x, draw(*x.shape, seed=5))
    if transform in ("vmap", "functionalize"):
        close(TRANSFORMS[transform](fused, x, draw(*x.shape, seed=5)), expected)
    else:
        with pytest.raises(RuntimeError, match=r"norm\.impl=eager"):
            TRANSFORMS[transform](fused, x, draw(*x.shape, seed=5))


@pytest.mark.slow
@pytest.mark.usefixtures("fused_kernels")
@pytest.mark.parametrize("name", ["ln", "rms, maps", "prms"])
def test_fused_norms_refuse_forward_mode_and_second_derivatives(name: str) -> None:
    layer, x = layer_and_input(name, "fused")
    with pytest.raises(RuntimeError, match=r"norm\.impl=eager"):
        dual(layer, x)
    leaf = x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match=r"norm\.impl=eager"):
        torch.autograd.grad(layer(leaf).sum(), leaf, create_graph=True)


def dual(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return call(forward_ad.make_dual(x, x))


REFUSED: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "jvp": lambda call, x: func.jvp(call, (x,), (x,)),
    "grad": lambda call, x: func.grad(lambda x: call(x).sum())(x),
    "vmap": lambda call, x: func.vmap(lambda row: call(row.unsqueeze(0)))(x),
    "dual tensors": dual,
    "dual tensors in no_grad": torch.no_grad()(dual),
}


@pytest.mark.slow
@pytest.mark.usefixtures("fused_kernels")
@pytest.mark.parametrize("transform", REFUSED)
def test_fused_recurrences_refuse_forward_mode_and_transforms(transform: str) -> None:
    """A derivative that the fused recurrences cannot compute is an error, never zero; without transform they work."""
    call, x = fill(GRU(norms.RMS(name="rms", impl="fused"), "unit", 6, 2)), draw(2, 3, 6)
    assert call(x).isfinite().all()
    with pytest.raises((RuntimeError, NotImplementedError), match=r"autograd\.Function"):
        REFUSED[transform](call, x)
