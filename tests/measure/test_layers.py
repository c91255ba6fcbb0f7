"""Layers of the benchmark: their passes, and equal results of all layers of the same norm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rmsexp.measure import layers, peers
from rmsexp.measure.layers import NO_BATCHES, LayerPass, norm_cases
from rmsexp.measure.options import FORWARD
from rmsexp.records.record import FEWEST_PROBES


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


def test_peers_compute_what_they_are_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled layers compute what the layers do."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    both, _, added = norm_cases("4x32", torch.float64, torch.device("cpu"), peers=print)
    for name in peers.COMPILED:
        compiled = both.layers[f"{name}, compiled"].layer
        assert torch.allclose(compiled(both.layers[name].x), both.layers[name].layer(both.layers[name].x))
        results = (added.layers[other].layer(added.layers[name].x) for other in (f"{name}, compiled", name))
        assert all(torch.allclose(*pair) for pair in zip(*results, strict=True))


class InPlace(torch.autograd.Function):
    """Twice the input. The backward pass writes the gradient of the input into that of the output, as Liger's does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return 2 * x

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # type: ignore[override]  # noqa: ARG004
        return dy.mul_(2)


class Writing(nn.Module):
    def __init__(self, _: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return InPlace.apply(x)


class Failing(Writing):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError(f"no kernel\nfor width {x.shape[-1]}")


class Addition(nn.LayerNorm):
    def forward(self, x: Tensor, addend: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x + addend), x + addend


def older(_: int) -> nn.Module:
    raise ImportError("cannot import name 'Norm'")


def test_layers_of_libraries_that_cannot_be_timed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are left out; the input and the gradient, which all layers share, keep their values."""
    makers = {"plain": nn.LayerNorm, "writing": Writing, "failing": Failing, "older": older}
    libraries = {name: peers.Library("torch", maker) for name, maker in makers.items()}
    libraries["absent"] = peers.Library("no such package", nn.LayerNorm)
    x, gradient, said = torch.randn(3, 4).requires_grad_(), torch.randn(3, 4), list[str]()
    before, version = gradient.clone(), metadata.version("torch")
    assert list(peers.of_libraries(libraries, (x,), gradient, said.append)) == ["plain"]
    assert torch.equal(gradient, before)
    assert x.grad is None
    assert said == [
        f"writing of torch {version} is not timed at 3x4: its backward pass writes into the gradient of its output",
        f"failing of torch {version} is not timed at 3x4: RuntimeError: no kernel for width 4",
        f"older of torch {version} is not timed at 3x4: ImportError: cannot import name 'Norm'",
    ]
    fused = {"sum": peers.Library("torch", Addition)}
    (layer,) = peers.of_libraries(fused, (x, x), gradient, said.append).values()
    assert all(parameter.grad is None for parameter in layer.parameters())
    monkeypatch.setattr(peers, "LAYERS", libraries)
    assert peers.versions(["plain", "nn.LayerNorm"]) == {"torch": version}


@torch._dynamo.config.patch(recompile_limit=8)  # torch's default, enough for one shape
def test_compiled_layers_are_compiled_for_every_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their second pass compiles nothing, and runs one compiled graph."""
    counts, compile_with = {"compiled": 0, "ran": 0}, torch.compile

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            counts["ran"] += 1
            return graph(*inputs)

        counts["compiled"] += 1
        return run

    monkeypatch.setattr(torch, "compile", partial(compile_with, backend=backend))
    for shape in ("4x8", "4x16", "5x16"):
        for case in norm_cases(shape, torch.float64, torch.device("cpu"), peers=print):
            compiled = [name for name in case.layers if name.endswith("compiled")]
            assert compiled
            for name in compiled:
                with torch.set_grad_enabled(case.passes != FORWARD):
                    case.layers[name].take(0, NO_BATCHES)
                    counts |= {"compiled": 0, "ran": 0}
                    case.layers[name].take(1, NO_BATCHES)
                assert counts == {"compiled": 0, "ran": 1}, (shape, case.passes, name)


def test_the_operators_of_a_call_are_named() -> None:
    layer, x = torch.nn.LayerNorm(4), torch.ones(2, 4)
    names = peers.operators(lambda: layer(x), x.device)
    assert names[0] == "aten::layer_norm"
    assert "aten::native_layer_norm" in names
