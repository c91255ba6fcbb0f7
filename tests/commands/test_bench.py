"""``python -m rmsexp.bench``: command lines, tables, and records of tiny shapes."""

import json
import shlex
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cases import some

from rmsexp.commands import bench
from rmsexp.config.timing import ADDITION, BOTH, FEWEST_BENCH_ROUNDS, FORWARD
from rmsexp.measure import interleaved, layers
from rmsexp.report.plots import bench as bench_table
from rmsexp.rules.ratios import paired_ratio
from rmsexp.system.process import Interrupted

pytestmark = pytest.mark.slow

# Command lines


def test_the_folder_of_own_norms_is_named_before_or_after_the_table() -> None:
    for words in ("--config-dir my norms", "norms --config-dir=my", "-cd my norms"):
        assert bench.parse(words.split()).config_dir == "my"
    assert bench.parse(["recurrences"]).config_dir is None


def test_an_unwritable_folder_is_reported_before_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/proc/nothing")
    for name, status in {"file": 2, "link": 1}.items():
        assert bench.main(["norms", "--results", str(tmp_path / name)]) == status
        assert capsys.readouterr().err.count("\n") == 1


def test_without_fused_kernels_nothing_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the record would say "fused" of eager layers."""
    monkeypatch.setattr("rmsexp.norms.kernels.load", lambda: False)
    assert bench.main(["norms", "--results", str(tmp_path)]) == 1
    assert "fused layers cannot be timed without the fused kernels" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# Tables


def test_row_of_a_layer_has_quantiles_of_its_times_and_its_ratio() -> None:
    milliseconds = np.arange(1.0, 12.0)
    case = measured("20", 20, FORWARD, {"a": list(milliseconds / 1000), "b": list(0.5 * milliseconds / 1000)})
    assert bench_table.heading(case) == "20, forward (disturbed)"
    assert bench_table.readable(case).to_numpy().tolist() == [
        ["a", "6.000 (2.000 to 10.00)", "1"],
        ["b", "3.000 (1.000 to 5.000)", "0.500 (0.500 to 0.500)"],
    ]


def test_the_yardstick_counts_the_arrays_that_are_moved() -> None:
    case = measured("1000", 1000, FORWARD, {"a": [4e-6] * 9, "triad": [3e-6] * 9})
    rows = bench_table.readable(case).to_numpy()[:, 3:].tolist()
    assert rows == [["2", "0.500 (0.500 to 0.500)"], ["4", "1"]]  # 2 x 4,000 bytes in 4 us, 3 x 4,000 in 3 us


def measured(shape: str, elements: int, passes: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
    stored = {"shape": shape, "elements": elements, "passes": passes, "reference": "a"}
    stored["bytes"] = {name: 4 * elements * (3 if name == "triad" else 2) for name in seconds}
    return stored | {"seconds": seconds, "contention": {"state": "disturbed"}}


@pytest.mark.parametrize(("waited", "text"), [(0.001, ""), (0.02, " (disturbed)"), (None, "")])
def test_older_records_are_judged_by_the_limits_of_today(waited: float | None, text: str) -> None:
    assert bench_table.contention({"contention": {"state": "undisturbed", "waited": waited}}) == text


# Records

ONE_OPERATOR = {f"{norm} fused" for norm in ("ln", "rms", "prms", "rms gainless", "l2", "nonparametric_ln")}
EAGER = {f"{norm} eager" for norm in ("ln", "rms", "prms")}
NORMS = {"triad", "nn.LayerNorm", "nn.RMSNorm", "dyt fused", "derf fused"} | ONE_OPERATOR | EAGER
OTHERS = {ADDITION: {f"{name}, apart" for name in ONE_OPERATOR}}
RECURRENCES = {"torch.nn"} | {
    f"{norm} {impl}" for norm in ("none", "ln", "rms", "prms", "wn") for impl in ("eager", "fused")
}


def cases(stored: dict[str, Any]) -> list[tuple[Any, ...]]:
    keys = ("shape", "passes", "elements", "reference")
    return [tuple(measurement[key] for key in keys) for measurement in stored["measurements"]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs a command line with a small budget and returns the record."""
    monkeypatch.setattr(interleaved, "BLOCK_SECONDS", 1e-4)

    def record(words: str, folder: str) -> dict[str, Any]:
        options = ["--seconds", "0.01", "--threads", "1", "--device", "cpu", "--results", str(tmp_path)]
        argv = [*words.split(), *options]
        assert bench.main(argv) == 0
        stored: dict[str, Any] = json.loads((tmp_path / folder / bench.FILE).read_text())
        kept = [word for word in argv if word not in ("--results", str(tmp_path))]
        assert stored["command"] == shlex.join(["python", "-m", "rmsexp.bench", *kept])
        return stored

    return record


@pytest.mark.parametrize("dtype", some(bench.DTYPES, ["float32", "bfloat16"]))
def test_record_tables_and_output_of_norm_layers(
    dtype: str, run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], unwritten_figures: list[str]
) -> None:
    stored = run(f"norms --shapes 3x32 5x16 --dtype {dtype}", "norms0")
    assert (stored["what"], stored["dtype"], stored["budget"]) == ("norms", dtype, 0.01)
    assert stored["stopped"] == "all measured"
    assert (stored["session"]["threads"], stored["session"]["device_type"]) == (1, "cpu")
    assert cases(stored) == [
        ("3x32", BOTH, 96, "nn.LayerNorm"),
        ("3x32", FORWARD, 96, "nn.LayerNorm"),
        ("3x32", ADDITION, 96, "nn.LayerNorm"),
        ("5x16", BOTH, 80, "nn.LayerNorm"),
        ("5x16", FORWARD, 80, "nn.LayerNorm"),
        ("5x16", ADDITION, 80, "nn.LayerNorm"),
    ]
    printed = capsys.readouterr()
    text = (tmp_path / "norms0" / "bench.md").read_text()
    for case in stored["measurements"]:
        assert set(case["seconds"]) == NORMS | OTHERS.get(case["passes"], set())
        rounds = {len(seconds) for seconds in case["seconds"].values()}
        assert len(rounds) == 1
        assert rounds.pop() >= FEWEST_BENCH_ROUNDS
        assert min(min(seconds) for seconds in case["seconds"].values()) > 0
        assert f"{case['shape']}, {case['passes']}" in printed.out
        assert f"## {case['shape']}, {case['passes']}" in text
        rms = paired_ratio(case["seconds"]["rms fused"], case["seconds"][case["reference"]])
        cell = "{:.3f} ({:.3f} to {:.3f})".format(*rms)
        assert cell in printed.out
        assert f"| {cell} |" in text
    assert printed.err.count(" layers, interleaved") == 6
    assert sorted(unwritten_figures) == ["addition_norm", "bandwidth", "forward", "forward_backward"]


@pytest.mark.parametrize("error", [Interrupted(signal.SIGTERM), RuntimeError("CUDA out of memory")])
def test_tables_that_were_finished_before_an_end_are_kept(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*_: object, **__: object) -> Any:
        yield measured("2x4", 8, FORWARD, {"a": [1.0] * 6, "b": [2.0] * 6})
        raise error

    monkeypatch.setattr(layers, "measure", measure)
    status = bench.main(["norms", "--results", str(tmp_path)])
    printed = capsys.readouterr()
    if isinstance(error, Interrupted):
        assert (status, printed.err) == (128 + signal.SIGTERM, "rmsexp: stopped by SIGTERM\n")
    else:
        assert status == 1
        assert printed.err.startswith("rmsexp: too little memory")
    assert f"record  {tmp_path / 'norms0/bench.json'}" in printed.out
    stored = json.loads((tmp_path / "norms0/bench.json").read_text())
    assert (stored["stopped"], len(stored["measurements"])) == ("interrupted", 1)
    assert "- interrupted: not all tables were measured\n" in (tmp_path / "norms0/bench.md").read_text()


def test_record_tables_and_figure_of_recurrences(run: Any, tmp_path: Path) -> None:
    stored = run("recurrences --shapes gru-3x2x4x32 lstm-2x3x4x16", "recurrences0")
    assert cases(stored) == [("gru-3x2x4x32", BOTH, 24, "torch.nn"), ("lstm-2x3x4x16", BOTH, 24, "torch.nn")]
    assert all(set(case["seconds"]) == RECURRENCES for case in stored["measurements"])
    text = (tmp_path / "recurrences0" / "bench.md").read_text()
    assert "ratio to torch.nn" in text
    svg = (tmp_path / "recurrences0" / "forward_backward.svg").read_text()
    assert all(word in svg for word in ("gru-3x2x4x32", "lstm-2x3x4x16", "prms fused", "ratio to torch.nn"))
