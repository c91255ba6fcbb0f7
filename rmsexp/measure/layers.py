"""Interleaved benchmarks of single norm layers and recurrent layers of given shapes, and of torch's own."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rmsexp import norms
from rmsexp.config.timing import ADDITION, BOTH, FEWEST_BENCH_ROUNDS, FORWARD, MOVED, TRIAD, TRIAD_MOVED
from rmsexp.measure.interleaved import InterleavedTimer
from rmsexp.models import recurrent
from rmsexp.models.init import initialise, uniform
from rmsexp.norms.base import IMPLS
from rmsexp.system.clock import Stopwatch
from rmsexp.system.machine_lock import measuring
from rmsexp.task import MicroBatches
from rmsexp.train.randomness import standard_normal, stream

NO_BATCHES = MicroBatches((), ())


class LayerPass:
    """A call of a layer on ``x``: the forward pass and, if ``gradient`` is given, the backward pass.

    ``gradient``: the gradient with respect to the output, or to each of several outputs. After the backward pass the
    gradients with respect to ``x`` and ``parameters`` are deleted.
    """

    def __init__(
        self,
        layer: Callable[[Tensor], Tensor | tuple[Tensor, ...]],
        x: Tensor,
        gradient: Tensor | tuple[Tensor, ...] | None = None,
        parameters: Iterable[Tensor] = (),
    ) -> None:
        self.layer, self.x, self.gradient, self.leaves = layer, x, gradient, [x, *parameters]

    def __call__(self, *_: object) -> None:
        output = self.layer(self.x)
        if self.gradient is not None:
            torch.autograd.backward(output, self.gradient)
            for leaf in self.leaves:
                leaf.grad = None


class Case(NamedTuple):
    """Layers, by name, that are timed on the same input.

    ``passes``: ``BOTH``, ``FORWARD`` or ``ADDITION``. ``elements``: the number of values in the input, of ``itemsize``
    bytes each. ``reference``: the layer with which the others are compared.
    """

    passes: str
    elements: int
    reference: str
    layers: dict[str, LayerPass]
    itemsize: int


def measure(
    what: str,
    shapes: Sequence[str],
    dtype: torch.dtype,
    budget: float,
    device: torch.device,
    report: Callable[[str], None],
    own: Sequence[norms.Norm] = (),
    peers: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield the measurement of each case of each shape, as the record stores it, while no other process measures.

    ``what``: a key of ``CASES``. ``budget``: each case is timed for at least this many seconds and at least
    ``FEWEST_BENCH_ROUNDS`` rounds. ``own``: norms that are timed besides those of this package. ``peers``: whether
    compiled layers are timed, too.
    """
    with measuring(report):
        for number, shape in enumerate(shapes, 1):
            for case in CASES[what](shape, dtype, device, own, peers):
                report(f"{number}/{len(shapes)}  {shape}, {case.passes}: {len(case.layers)} layers, interleaved")
                yield {"shape": shape, **_measure_case(case, budget, device)}


def _measure_case(case: Case, budget: float, device: torch.device) -> dict[str, Any]:
    timer = InterleavedTimer(list(case.layers.values()), lambda _: NO_BATCHES, device, seed=0)
    with torch.set_grad_enabled(case.passes != FORWARD):
        timer.warm_up()
        timer.contention.probe_at_an_edge()  # a case may have too few rounds, each with a probe, to show a state
        watch, rounds = Stopwatch(), list[list[float]]()
        for timed in timer.rounds():
            rounds.append(timed.seconds)
            if len(rounds) >= FEWEST_BENCH_ROUNDS and watch.seconds > budget:
                break
        timer.contention.probe_at_an_edge()
    return {
        **{key: getattr(case, key) for key in ("passes", "elements", "reference")},
        "bytes": {
            name: case.elements * case.itemsize * (TRIAD_MOVED if name == TRIAD else MOVED[case.passes])
            for name in case.layers
        },
        "calls_per_block": timer.steps_per_block,
        "contention": timer.contention.report(),
        "seconds": {
            name: [round(value, 12) for value in seconds]
            for name, seconds in zip(case.layers, zip(*rounds, strict=True), strict=True)
        },
    }


def norm_cases(
    shape: str, dtype: torch.dtype, device: torch.device, own: Sequence[norms.Norm], peers: bool
) -> list[Case]:
    """Return cases of norm layers on input of shape ``ROWSxFEATURES``: both passes, the forward pass alone, additions.

    The statistics are over the features. Additions: a residual sum and the norm after it; fused norms with statistics
    compute both in one operator, or "apart" in two. The norms ``own`` act on activations. Each case has the ``TRIAD``
    of arrays as large as the input, which shows how fast memory or caches are. With ``peers``, there are also eager
    LayerNorm and RMSNorm and torch's RMSNorm, compiled by torch.compile, each alone and, in additions, with the sum.
    """
    rows, features = map(int, shape.split("x"))
    layers: dict[str, nn.Module] = {"nn.LayerNorm": nn.LayerNorm(features), "nn.RMSNorm": nn.RMSNorm(features)}
    for impl in IMPLS:
        layers[f"ln {impl}"] = norms.LayerNorm(features, impl=impl)
        layers[f"rms {impl}"] = norms.RMSNorm(features, impl=impl)
        layers[f"prms {impl}"] = norms.RMSNorm(features, p=0.0625, impl=impl)
    layers["rms gainless fused"] = norms.RMSNorm(features, elementwise_affine=False, impl="fused")
    layers["dyt fused"] = norms.DynamicTanh(features, impl="fused")
    layers["derf fused"] = norms.DynamicErf(features, impl="fused")
    layers["l2 fused"] = norms.L2Norm(features, impl="fused")
    layers["nonparametric_ln fused"] = norms.LayerNorm(features, elementwise_affine=False, impl="fused")
    layers |= {f"{norm.name} {norm.impl}": norm.value("bench", features) for norm in own}
    x = _standard_normal((rows, features), "input", dtype, device).requires_grad_()
    addend = _standard_normal((rows, features), "addend", dtype, device).requires_grad_()
    gradient = _standard_normal((rows, features), "gradient", dtype, device)
    both = {name: LayerPass(layer, x, gradient, layer.to(device, dtype).parameters()) for name, layer in layers.items()}
    forward = {name: LayerPass(layer, x) for name, layer in layers.items()}
    added = {
        name: LayerPass(add, x, (gradient, gradient), [addend, *layers[name.removesuffix(", apart")].parameters()])
        for name, add in _additions(layers, addend).items()
    }
    if peers:
        torch.compiler.reset()  # beyond some versions of a function, as of other shapes, torch would compile no more
        for name in ("ln eager", "rms eager", "nn.RMSNorm"):
            layer, label = layers[name], f"{name.removesuffix(' eager')} compiled"
            compiled, together = torch.compile(layer), torch.compile(partial(_apart, layer, addend=addend))
            both[label] = LayerPass(compiled, x, gradient, layer.parameters())
            forward[label] = LayerPass(compiled, x)
            added[label] = LayerPass(together, x, (gradient, gradient), [addend, *layer.parameters()])
    result, values = torch.empty_like(x), x.detach()
    triad = LayerPass(lambda _: torch.add(values, gradient, alpha=3, out=result), x)
    return [
        Case(passes, x.numel(), "nn.LayerNorm", {**timed, TRIAD: triad}, x.element_size())
        for passes, timed in ((BOTH, both), (FORWARD, forward), (ADDITION, added))
    ]


def _additions(layers: dict[str, nn.Module], addend: Tensor) -> dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]]:
    """Return functions of x that return ``x + addend`` and its norm, by the norm's name or "NAME, apart"."""
    functions: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {}
    for name, layer in layers.items():
        functions[name] = apart = partial(_apart, layer, addend=addend)
        if isinstance(layer, norms.Normaliser):
            functions[name] = partial(layer.add, addend=addend)
            if name.endswith("fused") and type(layer).add is not norms.Normaliser.add:
                functions[f"{name}, apart"] = apart
    return functions


def _apart(layer: nn.Module, x: Tensor, addend: Tensor) -> tuple[Tensor, Tensor]:
    total = x + addend
    return total, layer(total)


def recurrence_cases(
    shape: str, dtype: torch.dtype, device: torch.device, own: Sequence[norms.Norm], _peers: bool
) -> list[Case]:
    """Return the case of a GRU or LSTM over whole sequences, with several norms.

    ``shape``: ``CELL-TIMExBATCHxINxHIDDEN``.
    """
    torch.backends.cudnn.allow_tf32 = False  # the default is TF32, but matrix products outside cuDNN are in float32
    cell, sizes = shape.split("-")
    time, batch, n_in, hidden = map(int, sizes.split("x"))
    x = _standard_normal((batch, time, n_in), "input", dtype, device).requires_grad_()
    gradient = _standard_normal((batch, time, hidden), "gradient", dtype, device)
    torch_layer = (nn.GRU if cell == "gru" else nn.LSTM)(n_in, hidden, batch_first=True).to(device, dtype)
    layers = {"torch.nn": LayerPass(lambda x: torch_layer(x)[0], x, gradient, torch_layer.parameters())}
    unit = recurrent.GRU if cell == "gru" else recurrent.LSTM
    options = {"none": norms.NoNorm, "ln": norms.LN, "rms": norms.RMS, "prms": norms.PRMS, "wn": norms.WN}
    timed = [norm(name=name, impl=impl) for impl, (name, norm) in itertools.product(IMPLS, options.items())]
    for norm in (*timed, *own):
        layer = unit(norm, cell, n_in, hidden)
        initialise(layer, uniform(hidden**-0.5), partial(stream, 0))
        layers[f"{norm.name} {norm.impl}"] = LayerPass(layer, x, gradient, layer.to(device, dtype).parameters())
    return [Case(BOTH, x.numel(), "torch.nn", layers, x.element_size())]


CASES: dict[str, Callable[..., list[Case]]] = {"norms": norm_cases, "recurrences": recurrence_cases}


def _standard_normal(shape: tuple[int, ...], name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    return standard_normal(torch.Size(shape), 0, name, device=device).to(dtype)
