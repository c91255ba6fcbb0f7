"""torch.compile traces norms whole, for rows and feature maps whose sizes change, with few compilations."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from helpers.cases import some
from helpers.sites import close, draw, fill
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from rmsexp import norms

pytestmark = pytest.mark.slow

ROWS = [(4, 2, 6), (7, 3, 6), (5, 9, 6)]
MAPS = [(2, 3, 8, 8), (3, 3, 6, 7), (4, 3, 12, 10), (5, 3, 20, 9)]


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


def assert_compiles_whole(
    make: Callable[[], nn.Module], inputs: Sequence[Tensor], most: int, backend: str = "eager", **arguments: Any
) -> None:
    """Assert that a compiled layer equals the layer for every input, and is compiled at most ``most`` times.

    Results, gradients of the input, and buffers are compared. More than one compilation comes from torch: it assumes
    at first that equal sizes stay equal.
    """
    counter = CompileCounterWithBackend(backend)
    layer, reference = fill(make()), fill(make())
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for x in inputs:
        results = []
        for call in (compiled, reference):
            leaf = x.clone().requires_grad_()
            y = call(leaf, **arguments)
            results.append((y, *torch.autograd.grad(y.pow(3).sum(), leaf)))
        close(*results)
    close(layer.state_dict(), reference.state_dict())
    assert 0 < counter.frame_count <= most


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "ln": norms.LayerNorm,
    "prms": partial(norms.RMSNorm, p=0.0625, eps_inside=False),
}


def test_rows_of_changing_number(impl: str) -> None:
    assert_compiles_whole(lambda: LAYERS["prms"](6, impl=impl), [draw(*shape) for shape in ROWS], 2)
    assert_compiles_whole(lambda: LAYERS["prms"]((2, 6), impl=impl), [draw(n, 2, 6) for n in (3, 5, 8)], 2)


@pytest.mark.parametrize("name", some(LAYERS, ["prms"]))
def test_maps_of_changing_size(name: str, impl: str) -> None:
    assert_compiles_whole(lambda: LAYERS[name](3, impl=impl, axes=(2, 3)), [draw(*shape) for shape in MAPS], 3)


def test_maps_of_changing_size_with_a_compiled_backward_pass() -> None:
    layer = partial(norms.RMSNorm, 3, p=0.0625, impl="fused", axes=(2, 3))
    assert_compiles_whole(layer, [draw(*shape) for shape in MAPS], 4, "aot_eager")


OPTIONS = norms.BN(name="bn", min_examples=5, padding="include")
BATCH_NORMS: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]], dict[str, Any]]] = {
    "maps": (partial(norms.BatchNorm, 3, maps=True), MAPS, {}),
    # the first batch of 4 examples has too few for statistics of its own
    "steps": (partial(norms.BatchNorm, 6, options=OPTIONS), [(n, 3, 6) for n in (7, 4, 9)], {"steps": range(3)}),
    "one step": (partial(norms.BatchNorm, 6, options=OPTIONS), [(n, 6) for n in (7, 4, 9)], {"steps": 2}),
}


@pytest.mark.parametrize("name", some(BATCH_NORMS, ["maps", "steps"]))
def test_batch_norm_in_training(name: str) -> None:
    """The running statistics after compiled and uncompiled batches agree, too."""
    make, shapes, arguments = BATCH_NORMS[name]
    assert_compiles_whole(make, [draw(*shape) for shape in shapes], 3, **arguments)


def test_batch_norm_in_evaluation() -> None:
    layer = norms.BatchNorm(6, options=OPTIONS).double()
    layer(draw(7, 2, 6), steps=range(2))
    assert_compiles_whole(lambda: copy.deepcopy(layer).eval(), [draw(4, 3, 6)], 1, steps=range(3))


def test_batch_norm_that_excludes_padding_breaks_the_graph() -> None:
    """How many examples a statistic has is then known only after the mask was read; two graphs give the same result."""
    mask = torch.arange(3) < torch.tensor([[3], [3], [1], [2], [3], [1]])
    x, layers = draw(6, 3, 6), [norms.BatchNorm(6).double() for _ in range(2)]
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        torch.compile(layers[0], fullgraph=True, backend="eager")(x, mask=mask)
    torch._dynamo.reset()
    close(torch.compile(layers[0], backend="eager")(x, mask=mask), layers[1](x, mask=mask))
    close(layers[0].state_dict(), layers[1].state_dict())
