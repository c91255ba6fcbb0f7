"""``python -m rmsexp.timing``: command lines, records, their table and figure."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.reading_and_retrieval import tiny

from rmsexp import config, timing
from rmsexp.compare.plots import timing as timing_plot
from rmsexp.compare.records import timing_records
from rmsexp.compare.records.ratios import paired_ratio
from rmsexp.compare.tables import timing as timing_table
from rmsexp.measure import interleaved

CPU = torch.device("cpu")


# Command lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["norm=ln"], "norm= names a single norm; list all norms to compare: norms=[ln,rms]"),
        (["norms=[ln,ln]"], "norms names ln twice"),
        (["norms=[ln,ln+eps=1e-6]"], "norms and impl name ln twice"),
        (["impl=[eager,eager]"], "impl names eager twice"),
        (["norms=[[ln]]"], "norms must be a list of single values, got [['ln']]"),
        (["--config-dir", "nowhere"], "--config-dir nowhere is not a folder"),
        (["hydra.mode=MULTIRUN"], "hydra.mode=MULTIRUN has an effect in sweeps only"),
        (["norms=[none,rms]"], "timing.reference=ln is not one of none, rms"),
        (["norms=[ln,rmss]"], "norm=rmss is not known"),
        (["norms=[ln,rms+p=0.5]"], "norm=rms has no option norm.p"),
        (["impl=[quick]"], "norm.impl=quick is not known"),
        (["timing.layer=true"], "timing.layer is not known; did you mean timing.layers?"),
        (["timing.budget=0"], "timing.budget must be a finite number greater than 0, got 0.0"),
        (["timing.target_width=-1"], "timing.target_width must be a finite number greater than 0"),
        (["task=cifar"], "task=cifar is not known"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_reported_in_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert timing.main(words) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("rmsexp: ")
    assert message in errors
    assert errors.count("\n") == 1


def test_series_and_setting_are_named_as_those_of_runs() -> None:
    _, jobs = timing.parse(["norms=[ln,prms,prms+p=0.5]", "task=rnnsearch", "scale=small", "optim.lr=0.1"])
    assert list(jobs) == ["ln", "prms", "prms+p=0.5"]
    assert {job.setting for job in jobs.values()} == {"small+optim.lr=0.1"}
    assert [getattr(job.norm, "p", None) for job in jobs.values()] == [None, 0.0625, 0.5]


def test_a_norm_of_your_own_can_be_timed(tmp_path: Path) -> None:
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm/own.yaml").write_text("_target_: rmsexp.norms.RMS\nname: own\nimpl: eager\neps: 0.5\n")
    for flag in (["--config-dir", str(tmp_path)], [f"--config-dir={tmp_path}"], ["-cd", str(tmp_path)]):
        _, jobs = timing.parse(["norms=[ln,own]", *flag, "impl=[eager,fused]"])
        assert list(jobs) == ["ln", "own", "ln+impl=fused", "own+impl=fused"]
        assert jobs["own"].norm.eps == 0.5


def test_several_implementations_need_labels() -> None:
    eager = SimpleNamespace(series="ln", norm=SimpleNamespace(impl="eager"))
    fused = SimpleNamespace(series="rms+impl=fused", norm=SimpleNamespace(impl="fused"))
    jobs: list[Any] = [eager, fused]
    with pytest.raises(config.ConfigError, match=r"write impl=\[eager,fused\]"):
        timing._check(timing.Options(), jobs)
    timing._check(timing.Options(impl=["eager", "fused"]), jobs)
    names = timing_records.labels(
        pd.DataFrame({"series": ["ln", "rms+impl=fused", "prms+p=0.5"], "impl": ["eager", "fused", "eager"]})
    )
    assert names == ["LayerNorm (eager)", "RMSNorm (fused)", "pRMSNorm p=0.5 (eager)"]
    assert timing_records.labels(pd.DataFrame({"series": ["ln", "rms"], "impl": ["eager"] * 2})) == [
        "LayerNorm",
        "RMSNorm",
    ]


# Records


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory, small_synthetic_data: None) -> Path:  # noqa: ARG001
    """Return a setting's folder with two timing records of a tiny order-embedding model: of steps, and of layers."""
    root = tmp_path_factory.mktemp("timing")
    words = [*tiny("order_embedding"), f"results={root}", f"data.root={root}", "timing.budget=0.2", "threads=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interleaved, "BLOCK_SECONDS", 1e-3)
        assert timing.main([*words, "norms=[none,ln,rms,prms]"]) == 0
        assert timing.main([*words, "norms=[none,ln,bn,wn]", "timing.layers=true", "device=cpu"]) == 0
    (folder,) = (root / "order_embedding").iterdir()
    return folder


def test_rows_of_a_record_follow_from_its_seconds(setting: Path) -> None:
    rows = timing_records.load(setting.parent.parent)
    assert list(rows.columns) == list(timing_records.COLUMNS)
    steps = rows[rows["kind"] == "steps"].set_index("series")
    stored = json.loads((setting / "timing" / "steps0" / timing_records.FILE).read_text())
    assert list(steps.index) == ["none", "ln", "rms", "prms"]
    seconds = {timed["series"]: np.array(timed["seconds"]) for timed in stored["series"]}
    for series, values in seconds.items():
        row = steps.loc[series]
        assert row["median_seconds_per_1k_steps"] == pytest.approx(1000 * np.median(values))
        assert row["ratio"] == paired_ratio(values, seconds["ln"]).ratio
        assert row["rounds"] == len(values) >= 2
        assert min(row["forward"], row["backward"], row["update"], row["peak_bytes"]) > 0
    assert stored["session"]["versions"]["torch"] == torch.__version__.split("+")[0]
    assert set(steps["builtin"]) == {True}
    assert stored["data_seconds"] > 0


def test_a_repeated_timing_is_another_record_and_the_newest_counts(setting: Path) -> None:
    assert timing_records.new_folder(setting / "timing", "steps") == setting / "timing" / "steps1"
    rows = timing_records.load(setting)
    older = rows.assign(started="2020-01-01T00:00:00+00:00", ratio=9.0)
    newest = timing_records.newest(pd.concat([older, rows]))
    assert list(newest["series"]) == ["none", "ln", "rms", "prms"]
    assert 9.0 not in set(newest["ratio"])


def test_a_damaged_record_is_skipped_and_reported(setting: Path, tmp_path: Path) -> None:
    good = (setting / "timing" / "steps0" / timing_records.FILE).read_text()
    for number, content in enumerate(("{", "[]", good.replace('"session"', '"sesion"'), good)):
        folder = tmp_path / "order_embedding" / "demo" / "timing" / f"steps{number}"
        folder.mkdir(parents=True)
        (folder / timing_records.FILE).write_text(content)
    problems: list[str] = []
    rows = timing_records.load(tmp_path, problems)
    assert {Path(folder).name for folder in rows["folder"]} == {"steps3"}
    assert [f"steps{number}/{timing_records.FILE}" in problem for number, problem in enumerate(problems)] == [True] * 3


def test_table_and_figure_of_a_record(setting: Path) -> None:
    rows = timing_records.load(setting)
    steps, layers = (rows[rows["kind"] == kind].reset_index(drop=True) for kind in ("steps", "layers"))
    table = timing_table.readable(steps).set_index("norm")
    saving = "saving vs LayerNorm (95 % interval)"
    assert table.loc["LayerNorm", saving] == "reference"
    assert table.loc["RMSNorm", saving].startswith(f"{100 * (1 - steps['ratio'][2]):.1f} % (")
    assert dict(table["paper"]) == {"no norm": "", "LayerNorm": "", "RMSNorm": "40.8 %", "pRMSNorm": "63.9 %"}
    assert set(timing_table.readable(layers)["paper"]) == {""}  # the paper's savings are of whole steps
    times, savings = timing_plot.draw(steps).axes
    assert times.get_xlabel() == "ms per step, median and quartiles"
    assert savings.get_xlabel() == "time saved vs LayerNorm (%), 95 % interval"
    assert [text.get_text() for text in times.texts] == ["no norm", "LayerNorm", "RMSNorm", "pRMSNorm"]
    (paper,) = [line for line in savings.lines if str(line.get_label()).startswith("paper, ")]
    assert list(paper.get_xdata()) == pytest.approx([40.8, 63.9])
    for name in ("timing.csv", "timing.png", "timing.svg"):
        assert (setting / "timing" / "layers0" / name).stat().st_size > 500


def test_a_norm_without_layers_is_left_out_and_cannot_be_the_reference(
    setting: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = timing_records.load(setting)
    assert list(rows[rows["kind"] == "layers"]["series"]) == ["ln", "bn", "wn"]
    words = [*tiny("order_embedding"), f"data.root={tmp_path}", f"results={tmp_path}", "timing.layers=true"]
    assert timing.main([*words, "norms=[none,ln]", "timing.reference=none", "threads=1"]) == 1
    assert "timing.reference=none has no norm layers to compare with" in capsys.readouterr().err
