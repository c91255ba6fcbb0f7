"""``python -m rmsexp.bench WHAT``: what layers cost, measured by turns in one process on the device at hand.

norms         norm layers, eager and fused, beside torch's: forward and backward, and forward alone beside a copy of
              the input into newly allocated memory
recurrences   GRU and LSTM over whole sequences with each norm, forward and backward, beside torch's without a norm

Prints a table a shape; then the record, its tables (Markdown) and its figures go to <results>/<what><number>/.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from rmsexp import checks, config, record
from rmsexp.compare import bench, tables, timing
from rmsexp.compare.bench import Measured, Summary

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import Tensor, nn

    from rmsexp.measure.interleaved import Interleaved
    from rmsexp.train.step import Batches, Part

FILE = "bench.json"
FEWEST_ROUNDS = 6  # an interval from fewer says nothing
DTYPES = ("float32", "float64", "bfloat16")
IMPLS = ("eager", "fused")
BOTH, ALONE = "forward + backward", "forward"
LARGE = 2**20  # elements, from which on memory is the limit and not the call


class Case(NamedTuple):
    """Layers that take turns on one input of so many elements, and the one that the others are compared with."""

    passes: str
    elements: int
    reference: str
    layers: dict[str, Call]


@dataclass(frozen=True)
class Benchmark:
    """``shapes``: those measured unless others are asked for; ``form`` and ``pattern``: how a shape is written."""

    cases: Callable[[str, torch.dtype, torch.device], list[Case]]
    form: str
    pattern: str
    shapes: tuple[str, ...]
    summaries: tuple[Summary, ...]


class Call:
    """A layer on one input: forward and backward with ``gradient``, or without it forward alone."""

    def __init__(
        self,
        layer: Callable[[Tensor], Tensor],
        x: Tensor,
        gradient: Tensor | None = None,
        parameters: Iterable[Tensor] = (),
    ) -> None:
        self.layer, self.x, self.gradient, self.leaves = layer, x, gradient, [x, *parameters]

    def take(self, step: int, batches: Batches, part: Part = nullcontext) -> None:  # noqa: ARG002
        output = self.layer(self.x)
        if self.gradient is not None:
            output.backward(self.gradient)
            for leaf in self.leaves:
                leaf.grad = None


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"rmsexp: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    arguments = parse(words)
    try:
        folder = measure(arguments, shlex.join(["python", "-m", "rmsexp.bench", *words]))
    except (ValueError, OSError) as error:
        print(f"rmsexp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rmsexp: interrupted; nothing is recorded of a benchmark that did not end", file=sys.stderr)
        return 130
    print(f"\nrecord  {folder / FILE}\ntables  {folder / 'bench.md'}, and figures beside it")
    return 0


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Raises: SystemExit, with status 2 after a line that says what is wrong."""
    parser = Parser(
        prog="python -m rmsexp.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    for what, benchmark in BENCHMARKS.items():
        command = commands.add_parser(what)
        command.add_argument(
            "--shapes", nargs="+", default=benchmark.shapes, metavar=benchmark.form, help=" ".join(benchmark.shapes)
        )
        command.add_argument(
            "--seconds",
            type=float,
            default=10.0,
            help=f"of measuring for each table, but at least {FEWEST_ROUNDS} rounds (10)",
        )
        command.add_argument("--threads", type=int, help="on the CPU (as many as the process may use)")
        command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
        command.add_argument("--results", type=Path, default=Path("results/bench"), help="(results/bench)")
    commands.choices["norms"].add_argument("--dtype", choices=DTYPES, default="float32")
    commands.choices["recurrences"].set_defaults(dtype="float32")
    arguments = parser.parse_args(words)
    try:
        _check(arguments)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def _check(arguments: argparse.Namespace) -> None:
    checks.positive("--seconds", arguments.seconds)
    if arguments.threads is not None:
        checks.at_least("--threads", arguments.threads, 1)
    benchmark, shapes = BENCHMARKS[arguments.what], arguments.shapes
    for shape in shapes:
        if not re.fullmatch(benchmark.pattern, shape):
            raise ValueError(f"--shapes: {shape} is not {benchmark.form}, such as {benchmark.shapes[0]}")
        if shapes.count(shape) > 1:
            raise ValueError(f"--shapes names {shape} twice")


def measure(arguments: argparse.Namespace, command: str) -> Path:
    """Measures shape after shape and writes the record; returns its folder."""
    import torch

    from rmsexp.train import provenance
    from rmsexp.train.device import set_up_device

    results: Path = arguments.results.expanduser()
    threads = "null" if arguments.threads is None else arguments.threads
    device = set_up_device(config.job([f"device={arguments.device}", f"threads={threads}"]).config)
    results.mkdir(parents=True, exist_ok=True)  # what cannot be written is known before the measuring
    keys = {"format": 1, "what": arguments.what, "dtype": arguments.dtype, "budget": arguments.seconds}
    content = {**keys, "command": command, "session": provenance.session(device, 0)}
    print(*bench.notes(content), sep="\n", flush=True)
    found: list[Measured] = []
    for place, shape in enumerate(arguments.shapes, 1):
        for case in BENCHMARKS[arguments.what].cases(shape, getattr(torch, arguments.dtype), device):
            where = f"{place}/{len(arguments.shapes)}  {shape}, {case.passes}"
            print(f"{where}: {len(case.layers)} layers by turns", file=sys.stderr, flush=True)
            found.append(_measured(shape, case, arguments.seconds, device))
            _print(bench.heading(found[-1].stored), bench.readable(found[-1]))
    folder = timing.new_folder(results, arguments.what)
    folder.mkdir()
    _write(folder, content, found)
    return folder


def _write(folder: Path, content: dict[str, Any], found: Sequence[Measured]) -> None:
    """The record, its tables and its figures; prints the summaries."""
    from rmsexp.compare import figures

    what, lines = content["what"], bench.notes(content)
    record.write_json(folder / FILE, content | {"measurements": [one.stored for one in found]})
    shown = bench.summaries(BENCHMARKS[what].summaries, found)
    for name, table in shown.items():
        _print(name, table)
    sections = {**shown, **{bench.heading(one.stored): bench.readable(one) for one in found}}
    parts = [f"# {what}", "\n".join(f"- {line}" for line in [*lines, f"`{content['command']}`"])]
    parts += [part for name, table in sections.items() for part in (f"## {name}", tables.markdown(table))]
    record.write_atomic(folder / "bench.md", "\n\n".join(parts) + "\n")
    for passes in dict.fromkeys(one.stored["passes"] for one in found):
        panels = [one for one in found if one.stored["passes"] == passes]
        figures.write(bench.draw(panels, f"{what}, {passes}", lines), folder / passes.replace(" + ", "_"))


def _print(name: str, table: pd.DataFrame) -> None:
    print("", name, table.to_string(index=False), sep="\n", flush=True)


def _measured(shape: str, case: Case, seconds: float, device: torch.device) -> Measured:
    """Rounds until the seconds are spent."""
    import torch

    from rmsexp.measure.interleaved import Interleaved

    turns = Interleaved(list(case.layers.values()), lambda _: (), device, seed=0)
    with torch.set_grad_enabled(case.passes == BOTH):
        turns.warm_up()
        found = _take_turns(turns, seconds)
    stored = {
        "shape": shape,
        **{key: getattr(case, key) for key in ("passes", "elements", "reference")},
        "calls_per_block": turns.steps_per_block,
        "contention": turns.contention.report(),
        "seconds": {
            name: [round(value, 12) for value in own]
            for name, own in zip(case.layers, zip(*found, strict=True), strict=True)
        },
    }
    return Measured(stored, bench.rows(stored["seconds"], case.reference))


def _take_turns(turns: Interleaved, seconds: float) -> list[list[float]]:
    from rmsexp.train.clock import Stopwatch

    watch, found = Stopwatch(), []
    for one in turns.rounds():
        found.append(one.seconds)
        if len(found) >= FEWEST_ROUNDS and watch.seconds > seconds:
            return found
    raise AssertionError("rounds do not end")


# What is measured


def norm_layers(shape: str, dtype: torch.dtype, device: torch.device) -> list[Case]:
    """``shape``: rows and features; statistics are over the features."""
    import torch
    from torch import nn

    from rmsexp.norms import L2Norm, LayerNorm, RMSNorm

    rows, features = map(int, shape.split("x"))
    layers: dict[str, nn.Module] = {"nn.LayerNorm": nn.LayerNorm(features), "nn.RMSNorm": nn.RMSNorm(features)}
    for impl in IMPLS:
        layers[f"ln {impl}"] = LayerNorm(features, impl=impl)
        layers[f"rms {impl}"] = RMSNorm(features, impl=impl)
        layers[f"prms {impl}"] = RMSNorm(features, p=0.0625, impl=impl)
    layers["l2 fused"] = L2Norm(features, impl="fused")
    layers["nonparametric_ln fused"] = LayerNorm(features, elementwise_affine=False, impl="fused")
    x = _values((rows, features), "input", dtype, device).requires_grad_()
    gradient = _values((rows, features), "gradient", dtype, device)
    both = {name: Call(layer, x, gradient, layer.to(device, dtype).parameters()) for name, layer in layers.items()}
    alone = {"copy": Call(torch.clone, x), **{name: Call(layer, x) for name, layer in layers.items()}}
    return [Case(BOTH, x.numel(), "nn.LayerNorm", both), Case(ALONE, x.numel(), "copy", alone)]


def recurrences(shape: str, dtype: torch.dtype, device: torch.device) -> list[Case]:
    """``shape``: the cell, time steps, batch, and the features of input and state."""
    import torch
    from torch import nn

    from rmsexp import norms
    from rmsexp.models import recurrent
    from rmsexp.models.init import initialise, uniform
    from rmsexp.train.randomness import stream

    torch.backends.cudnn.allow_tf32 = False  # it is on unless told; products outside of cuDNN are in float32
    cell, sizes = shape.split("-")
    time, batch, n_in, hidden = map(int, sizes.split("x"))
    x = _values((batch, time, n_in), "input", dtype, device).requires_grad_()
    gradient = _values((batch, time, hidden), "gradient", dtype, device)
    theirs = (nn.GRU if cell == "gru" else nn.LSTM)(n_in, hidden, batch_first=True).to(device, dtype)
    layers = {"torch.nn": Call(lambda x: theirs(x)[0], x, gradient, theirs.parameters())}
    unit = recurrent.GRU if cell == "gru" else recurrent.LSTM
    options = {"none": norms.NoNorm, "ln": norms.LN, "rms": norms.RMS, "prms": norms.PRMS, "wn": norms.WN}
    for impl, (name, norm) in itertools.product(IMPLS, options.items()):
        layer = unit(norm(name=name, impl=impl), cell, n_in, hidden)
        initialise(layer, uniform(hidden**-0.5), partial(stream, 0))
        layers[f"{name} {impl}"] = Call(layer, x, gradient, layer.to(device, dtype).parameters())
    return [Case(BOTH, x.numel(), "torch.nn", layers)]


def _values(shape: tuple[int, ...], name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    import torch

    from rmsexp.train.randomness import standard_normal

    return standard_normal(torch.Size(shape), 0, name, device=device).to(dtype)


SIZE = "[1-9][0-9]*"
BENCHMARKS = {
    "norms": Benchmark(
        norm_layers,
        "ROWSxFEATURES",
        f"{SIZE}x{SIZE}",
        ("64x240", "64x960", "80x1024", "3200x512", "4000x1024", "16384x1024"),
        (
            Summary(BOTH, (("rms fused", "nn.LayerNorm"), ("rms fused", "nn.RMSNorm"), ("prms fused", "rms fused"))),
            Summary(ALONE, (("ln fused", "copy"), ("rms fused", "copy"), ("prms fused", "copy")), LARGE),
        ),
    ),
    "recurrences": Benchmark(
        recurrences,
        "CELL-TIMExBATCHxINxHIDDEN",
        f"(gru|lstm)-{SIZE}x{SIZE}x{SIZE}x{SIZE}",
        ("gru-50x80x512x1024", "gru-30x32x128x256", "lstm-60x64x240x240"),
        (Summary(BOTH, tuple((f"{norm} fused", "torch.nn") for norm in ("none", "ln", "rms", "prms", "wn"))),),
    ),
}


if __name__ == "__main__":
    sys.exit(main())
