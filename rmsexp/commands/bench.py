"""``python -m rmsexp.bench WHAT``: time layers alone, interleaved in one process on one device.

norms         norm layers, eager, fused and torch's: forward with backward, forward alone, and a residual addition
              followed by the norm, forward with backward; and the bytes that they move in a second, beside those of a
              triad, a = b + 3 c, the yardstick of what memory or caches give
recurrences   GRU and LSTM over whole sequences, forward with backward: with several norms, and torch's without norm

Prints a table per shape, for ``norms`` three. The record, its tables and its figures go to a new folder,
<results>/norms<number>/ or <results>/recurrences<number>/. Ctrl-C ends the command with a record of finished tables.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rmsexp import config
from rmsexp.config.timing import FEWEST_BENCH_ROUNDS, SHAPES, TRIAD
from rmsexp.records.frames.timing_records import new_folder
from rmsexp.report.tables import markup
from rmsexp.system import atomic, process
from rmsexp.system.command_line import Parser, ReportedError, entry_point, inform, number, recorded, value_word

FILE = "bench.json"
DTYPES = ("float32", "float64", "bfloat16")


@entry_point
def main(words: Sequence[str]) -> int:
    arguments = parse(words)
    with process.Interrupt().install():
        run(arguments, recorded(["python", "-m", "rmsexp.bench", *words]))
    return 0


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command line.

    Raises: SystemExit with status 2, after printing a line that names a mistake, or with status 0 after --help.
    """
    parser = Parser(prog="python -m rmsexp.bench", description=__doc__)
    parser.add_argument("what", metavar="WHAT", choices=SHAPES, help=f"one of {', '.join(SHAPES)}")
    forms = "; ".join(f"{what}: {shapes.form}, default {' '.join(shapes.default)}" for what, shapes in SHAPES.items())
    parser.add_argument("--shapes", nargs="+", metavar="SHAPE", help=f"shapes to time ({forms})")
    seconds = f"measure each table for at least this many seconds and {FEWEST_BENCH_ROUNDS} rounds; default: 10"
    parser.add_argument("--seconds", type=number(float, 0.0), default=10.0, help=seconds)
    threads = "number of CPU threads; default: the number of cores that the process may use"
    parser.add_argument("--threads", type=number(int, 1, config.MOST_THREADS), help=threads)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of norms; recurrences are timed in float32")
    parser.add_argument(
        "--peers", action="store_true", help="time norms that torch.compile has compiled, too (slow to start)"
    )
    parser.add_argument("--results", type=Path, default=Path("results/bench"), help="default: results/bench")
    parser.add_config_dir("a folder of your own configs, whose norms are timed, too")
    arguments = parser.parse_args(words)
    shapes = SHAPES[arguments.what]
    if arguments.what == "recurrences" and arguments.dtype != "float32":
        parser.error(f"--dtype {arguments.dtype}: recurrences are timed in float32")
    if arguments.what == "recurrences" and arguments.peers:
        parser.error("--peers: only norms are compiled")
    arguments.shapes = arguments.shapes or shapes.default
    for shape in arguments.shapes:
        if not re.fullmatch(shapes.pattern, shape):
            parser.error(f"--shapes: {shape} is not {shapes.form}, such as {shapes.default[0]}")
        if arguments.shapes.count(shape) > 1:
            parser.error(f"--shapes names {shape} twice")
    return arguments


def run(arguments: argparse.Namespace, command: str) -> None:
    """Measure all shapes and print their tables; write record, tables and figures to a new folder, and print where."""
    import torch

    from rmsexp.measure import layers
    from rmsexp.norms import kernels
    from rmsexp.report.plots import bench
    from rmsexp.train import provenance
    from rmsexp.train.device import set_up_device

    results = config.results_folder(arguments.results)
    device = set_up_device(config.job([f"device={arguments.device}", value_word("threads", arguments.threads)]).config)
    atomic.make_writable(results)  # before measuring
    if not kernels.load():
        raise ReportedError("fused layers cannot be timed without the fused kernels; the notice above says what failed")
    keys = {"format": 1, "what": arguments.what, "dtype": arguments.dtype, "budget": arguments.seconds}
    content = {**keys, "command": command, "session": provenance.session(device, 0)}
    print(*bench.notes(content), sep="\n", flush=True)
    own, dtype, measured = _own_norms(arguments), getattr(torch, arguments.dtype), []
    stopped = "interrupted"
    try:
        options = (dtype, arguments.seconds, device, inform, own, arguments.peers)
        for stored in layers.measure(arguments.what, arguments.shapes, *options):
            measured.append(stored)
            print("", bench.heading(stored), bench.readable(stored).to_string(index=False), sep="\n", flush=True)
        stopped = "all measured"
    finally:
        if measured:
            content["stopped"] = stopped
            folder = new_folder(results, arguments.what)
            _write(folder, content, measured)
            print(f"\nrecord  {folder / FILE}\ntables  {folder / 'bench.md'}, and figures beside it")


def _own_norms(arguments: argparse.Namespace) -> list[Any]:
    """Return the norms in the folder of ``--config-dir``, with their default options; none without that option.

    A norm that acts on weights only has no layer that could be timed alone, except in recurrences. It is left out, and
    a line says so.
    """
    from rmsexp.norms.base import Identity

    config_dir = arguments.config_dir
    if config_dir is None:
        return []
    names = sorted({*config.options("norm", config_dir)} - {*config.options("norm")})
    found = [config.job([value_word("norm", name)], config_dir).norm for name in names]
    if arguments.what != "norms":
        return found
    features = int(arguments.shapes[0].split("x")[1])
    without_layers = [norm for norm in found if isinstance(norm.value("bench", features), Identity)]
    for norm in without_layers:
        inform(f"norm={norm.name} acts on weights only, so it has no layer that could be timed alone")
    return [norm for norm in found if norm not in without_layers]


def _write(folder: Path, content: dict[str, Any], measured: Sequence[dict[str, Any]]) -> None:
    """Write the record, its tables and its figures to ``folder``."""
    from rmsexp.report.plots import bench, canvas

    what, notes = content["what"], bench.notes(content)
    atomic.write_json(folder / FILE, content | {"measurements": measured})
    parts = [f"# {what}", markup.listed([*notes, f"`{content['command']}`"])]
    for case in measured:
        parts += [f"## {bench.heading(case)}", markup.markdown(bench.readable(case))]
    atomic.write_atomic(folder / "bench.md", markup.document(parts))
    for passes in dict.fromkeys(case["passes"] for case in measured):
        panels = [case for case in measured if case["passes"] == passes]
        canvas.write(bench.draw(panels, f"{what}, {passes}", notes), folder / passes.replace(" + ", "_"))
    if any(TRIAD in case["seconds"] for case in measured):
        canvas.write(bench.draw_bandwidth(measured, notes), folder / "bandwidth")
