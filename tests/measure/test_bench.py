"""The benchmark of layers: command lines, calls, ratios side by side, and whole records of tiny shapes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rmsexp import bench
from rmsexp.compare.records import benchmarks
from rmsexp.compare.records.benchmarks import Measured, Summary
from rmsexp.compare.records.ratios import paired_ratio
from rmsexp.compare.tables import bench as bench_table
from rmsexp.measure import interleaved, layers
from rmsexp.measure.layers import LayerPass
from rmsexp.measure.options import BOTH, FEWEST_BENCH_ROUNDS, FORWARD, SHAPES

# Command lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: WHAT"),
        ("norm", "argument WHAT: invalid choice: 'norm'"),
        ("norms --shapes 64y240", "--shapes: 64y240 is not ROWSxFEATURES, such as 64x240"),
        ("norms --shapes 64x0", "--shapes: 64x0 is not ROWSxFEATURES"),
        ("norms --shapes 2x3 2x3", "--shapes names 2x3 twice"),
        ("recurrences --shapes 5x8x5x10", "is not CELL-TIMExBATCHxINxHIDDEN, such as gru-50x80x512x1024"),
        ("recurrences --dtype float64", "unrecognized arguments: --dtype float64"),
        ("norms --dtype float8", "argument --dtype: invalid choice: 'float8'"),
        ("norms --seconds 0", "--seconds must be greater than 0, got 0.0"),
        ("norms --threads 0", "--threads must be at least 1, got 0"),
        ("norms --threads two", "argument --threads: invalid int value: 'two'"),
        ("norms --device gpu", "argument --device: invalid choice: 'gpu'"),
    ],
)
def test_mistake_is_named_in_a_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(words.split())
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("rmsexp: ")
    assert message in said
    assert said.count("\n") == 1


def test_an_unwritable_folder_is_reported_before_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert bench.main(["norms", "--results", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_default_shapes_are_valid_arguments() -> None:
    for what, shapes in SHAPES.items():
        assert list(bench.parse([what]).shapes) == bench.parse([what, "--shapes", *shapes.default]).shapes


def test_parsing_a_command_line_does_not_import_torch() -> None:
    code = "import sys; from rmsexp import bench; bench.parse(['norms']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# Passes through a layer


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


# What is said


def test_times_of_a_layer_and_its_ratio_by_hand() -> None:
    pace = np.arange(1.0, 12.0)  # of the machine
    reference, own = benchmarks.rows({"a": list(pace / 1000), "b": list(0.5 * pace / 1000)}, "a")
    assert (reference.layer, own.layer) == ("a", "b")
    assert own.milliseconds == pytest.approx((1, 3, 5))
    assert reference.relative == (1, 1, 1)
    assert own.relative == pytest.approx((0.5, 0.5, 0.5))


def measured(shape: str, elements: int, passes: str, seconds: dict[str, list[float]]) -> Measured:
    stored = {"shape": shape, "elements": elements, "passes": passes, "reference": "a", "seconds": seconds}
    return Measured(stored | {"contention": {"state": "contended"}}, benchmarks.rows(seconds, "a"))


def test_ratios_side_by_side_are_of_the_passes_and_sizes_asked_for() -> None:
    pace = [1.0, 3.0, 2.0, 5.0, 4.0, 6.0]
    both = [
        measured(str(size), size, BOTH, {"a": pace, "b": [factor * one for one in pace]})
        for size, factor in ((1, 9.0), (10, 0.5), (20, 2.0), (30, 8.0))
    ]
    alone = measured("20", 20, FORWARD, {"a": pace, "b": pace[::-1]})
    pairs = (("b", "a"), ("a", "b"))
    shown = bench_table.summaries(
        [Summary(BOTH, pairs, 10), Summary(FORWARD, pairs), Summary(FORWARD, pairs, 21)], [*both, alone]
    )
    assert list(shown) == ["Ratios, forward + backward", "Ratios, forward"]
    table = shown["Ratios, forward + backward"].set_index("shape")
    assert list(table.index) == ["10", "20", "30", "geometric mean"]
    assert list(table["b / a"]) == [
        *(f"{ratio} ({ratio} to {ratio})" for ratio in ("0.500", "2.000", "8.000")),
        "2.000",
    ]
    assert table["a / b"]["geometric mean"] == "0.500"
    interval = paired_ratio(pace[::-1], pace)
    assert shown["Ratios, forward"]["b / a"][0] == "{:.3f} ({:.3f} to {:.3f})".format(*interval)
    assert benchmarks.heading(alone.stored) == "20, forward (contended)"


# Records

NORMS = {"nn.LayerNorm", "nn.RMSNorm", "l2 fused", "nonparametric_ln fused"} | {
    f"{norm} {impl}" for norm in ("ln", "rms", "prms") for impl in ("eager", "fused")
}
RECURRENCES = {"torch.nn"} | {
    f"{norm} {impl}" for norm in ("none", "ln", "rms", "prms", "wn") for impl in ("eager", "fused")
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command line with little measuring and returns its record."""
    monkeypatch.setattr(interleaved, "BLOCK_SECONDS", 1e-4)

    def record(words: str, folder: str) -> dict[str, Any]:
        options = ["--seconds", "0.01", "--threads", "1", "--device", "cpu", "--results", str(tmp_path)]
        given = [*words.split(), *options]
        assert bench.main(given) == 0
        stored: dict[str, Any] = json.loads((tmp_path / folder / bench.FILE).read_text())
        assert stored["command"] == shlex.join(["python", "-m", "rmsexp.bench", *given])
        return stored

    return record


@pytest.mark.parametrize("dtype", bench.DTYPES)
def test_norm_layers_are_recorded_whole(
    dtype: str, run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = run(f"norms --shapes 3x32 5x16 --dtype {dtype}", "norms0")
    assert (stored["what"], stored["dtype"], stored["budget"]) == ("norms", dtype, 0.01)
    assert (stored["session"]["threads"], stored["session"]["device_type"]) == (1, "cpu")
    cases = [(one["shape"], one["passes"], one["elements"], one["reference"]) for one in stored["measurements"]]
    assert cases == [
        ("3x32", BOTH, 96, "nn.LayerNorm"),
        ("3x32", FORWARD, 96, "copy"),
        ("5x16", BOTH, 80, "nn.LayerNorm"),
        ("5x16", FORWARD, 80, "copy"),
    ]
    said = capsys.readouterr()
    text = (tmp_path / "norms0" / "bench.md").read_text()
    for one in stored["measurements"]:
        assert set(one["seconds"]) == NORMS | ({"copy"} if one["passes"] == FORWARD else set())
        rounds = {len(seconds) for seconds in one["seconds"].values()}
        assert len(rounds) == 1
        assert rounds.pop() >= FEWEST_BENCH_ROUNDS
        assert min(min(seconds) for seconds in one["seconds"].values()) > 0
        assert f"{one['shape']}, {one['passes']}" in said.out
        assert f"## {one['shape']}, {one['passes']}" in text
        rms = paired_ratio(one["seconds"]["rms fused"], one["seconds"][one["reference"]])
        cell = "{:.3f} ({:.3f} to {:.3f})".format(*rms)
        assert cell in said.out
        assert f"| {cell} |" in text
    assert "geometric mean" in said.out
    assert "Ratios, forward\n" not in said.out  # none of the shapes is large
    assert said.err.count(" layers, interleaved") == 4


def test_a_repetition_is_another_record(run: Any, tmp_path: Path) -> None:
    first, second = run("norms --shapes 2x8", "norms0"), run("norms --shapes 2x9", "norms1")
    assert [one["measurements"][0]["shape"] for one in (first, second)] == ["2x8", "2x9"]
    names = {"bench.json", "bench.md", "forward.png", "forward.svg", "forward_backward.png", "forward_backward.svg"}
    for folder in ("norms0", "norms1"):
        assert {path.name for path in (tmp_path / folder).iterdir()} == names


def test_recurrences_are_recorded_whole(run: Any, tmp_path: Path) -> None:
    stored = run("recurrences --shapes gru-3x2x4x32 lstm-2x3x4x16", "recurrences0")
    cases = [(one["shape"], one["passes"], one["elements"], one["reference"]) for one in stored["measurements"]]
    assert cases == [("gru-3x2x4x32", BOTH, 24, "torch.nn"), ("lstm-2x3x4x16", BOTH, 24, "torch.nn")]
    assert all(set(one["seconds"]) == RECURRENCES for one in stored["measurements"])
    text = (tmp_path / "recurrences0" / "bench.md").read_text()
    assert "rms fused / torch.nn" in text
    svg = (tmp_path / "recurrences0" / "forward_backward.svg").read_text()
    assert all(word in svg for word in ("gru-3x2x4x32", "lstm-2x3x4x16", "prms fused", "ratio to torch.nn"))


def test_layers_of_a_shape_are_those_that_they_are_called() -> None:
    """What is compared computes alike: each of a norm's layers is the same function of the same input."""
    both, alone = layers.norm_cases("4x32", torch.float64, torch.device("cpu"))
    x = both.layers["rms eager"].x
    assert torch.equal(alone.layers["copy"].layer(x), x)
    of = {name: call.layer(x) for name, call in both.layers.items()}
    for norm in ("ln", "rms", "prms"):
        assert torch.allclose(of[f"{norm} eager"], of[f"{norm} fused"], atol=1e-10)
    assert torch.allclose(of["ln eager"], of["nn.LayerNorm"], atol=1e-10)
    assert torch.allclose(of["rms eager"], of["nn.RMSNorm"], atol=1e-4)  # torch's eps is the machine's
    assert torch.allclose(of["prms eager"], x / (x[:, :2].square().mean(1, keepdim=True) + 1e-5).sqrt(), atol=1e-10)
    assert torch.allclose(of["l2 fused"], x / (x.square().sum(1, keepdim=True) + 1e-5).sqrt(), atol=1e-10)
    assert torch.allclose(of["nonparametric_ln fused"], of["ln eager"], atol=1e-10)
