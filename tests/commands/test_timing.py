"""``python -m rmsexp.timing``: command lines, records, their table and figure."""

import json
import math
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.reading_and_retrieval import tiny

from rmsexp import config
from rmsexp.commands import timing
from rmsexp.measure import interleaved, new_process, processes
from rmsexp.measure import steps as timed_steps
from rmsexp.records.frames import timing_records
from rmsexp.report.tables import savings
from rmsexp.rules.ratios import over_processes, paired_ratio
from rmsexp.system import readers
from rmsexp.system.process import Interrupted

REFERENCE = Path(__file__).parents[2] / "results/reference"


# Command lines


@pytest.mark.parametrize(
    ("words", "reference"),
    [
        (["impl=[fused]"], "ln+impl=fused"),
        (["impl=[fused]", "timing.reference=rms"], "rms+impl=fused"),
        (["impl=[fused,eager]"], "ln"),
        (["impl=[fused,eager]", "timing.reference=rms+impl=fused"], "rms+impl=fused"),
        (["impl=[eager,fused]", "timing.reference=none+impl=fused"], "none+impl=fused"),
    ],
    ids=" ".join,
)
def test_a_norm_as_reference_is_the_fused_one_if_no_eager_one_is_timed(words: list[str], reference: str) -> None:
    options, jobs = timing.parse([*words, "norms=[none,ln,rms]"])
    assert options.timing.reference == reference
    assert reference in jobs


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
    eager = SimpleNamespace(setting="demo", series="ln", impl="eager")
    fused = SimpleNamespace(setting="demo", series="rms+impl=fused", impl="fused")
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
    """Return a setting's folder with timing records of a tiny order-embedding model."""
    root = tmp_path_factory.mktemp("timing")
    words = [*tiny("order_embedding"), f"results={root}", f"data.root={root}", "timing.target_width=99999", "threads=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interleaved, "BLOCK_SECONDS", 1e-3)
        patch.setattr(interleaved, "FEWEST_STEPS", 1)
        patch.setattr(timed_steps, "FEWEST_ROUNDS", 8)
        patch.setattr(processes, "in_new_process", lambda _, work, arguments, report: work(*arguments, report))
        patch.setattr(timed_steps, "PARTS_BLOCKS", 1)
        assert timing.main([*words, "norms=[none,ln,rms,prms]", "timing.processes=2"]) == 0
        assert timing.main([*words, "norms=[ln,rms]", "timing.processes=1", "timing.budget=0.01"]) == 0
    (folder,) = (root / "order_embedding").iterdir()
    return folder


def of_record(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the rows of the record in a folder of this name."""
    return rows[[Path(folder).name == name for folder in rows["folder"]]].reset_index(drop=True)


def test_rows_of_a_record_follow_from_its_seconds(setting: Path) -> None:
    rows = timing_records.load(setting.parent.parent)
    assert list(rows.columns) == list(timing_records.COLUMNS)
    steps = of_record(rows, "steps0").set_index("series")
    stored = json.loads((setting / "timing" / "steps0" / timing_records.FILE).read_text())
    assert list(steps.index) == ["none", "ln", "rms", "prms"]
    assert stored["format"] == 2
    measured = [process["seconds"] for process in stored["processes"]]
    assert [sorted(seconds) for seconds in measured] == [["ln", "none", "prms", "rms"]] * 2
    for series, row in steps.iterrows():
        values = [seconds[series] for seconds in measured]
        assert row["median_seconds_per_1k_steps"] == pytest.approx(1000 * np.median(np.concatenate(values)))
        ratios = [paired_ratio(seconds[series], seconds["ln"]).ratio for seconds in measured]
        assert row["estimates"] == tuple(ratios)
        assert (row["ratio"], row["low"], row["high"]) == over_processes(ratios)
        assert (row["processes"], row["rounds"]) == (2, 16)
        assert min(row["forward"], row["backward"], row["update"], row["peak_bytes"]) > 0
    session = stored["processes"][0]["session"]
    assert session["versions"]["torch"] == torch.__version__.split("+")[0]
    assert set(steps["code"]) == {session["code"]}
    assert set(steps["builtin"]) == {True}
    assert set(steps["stopped"]) == {"narrow enough"}
    assert min(process["data_seconds"] for process in stored["processes"]) > 0


def test_one_process_is_not_replicated_and_the_command_that_was_typed_is_recorded_without_its_folders(
    setting: Path,
) -> None:
    once = of_record(timing_records.load(setting), "steps1")
    stored = json.loads((setting / "timing" / "steps1" / timing_records.FILE).read_text())
    (process,) = stored["processes"]
    interval = paired_ratio(process["seconds"]["rms"], process["seconds"]["ln"])
    assert tuple(once.iloc[1][["ratio", "low", "high"]]) == interval
    assert "one process, not replicated, 2 rounds" in timing_records.notes(once)[0]
    assert set(once["stopped"]) == {"budget spent"}
    assert stored["command"].startswith("python -m rmsexp.timing task=order_embedding ")
    assert stored["command"].endswith("'norms=[ln,rms]' timing.processes=1 timing.budget=0.01")
    assert "results=" not in stored["command"]


def test_records_of_format_1_are_read_as_one_process() -> None:
    folder = REFERENCE / "quality/order_embedding"
    rows = timing_records.load(folder)
    stored = json.loads((folder / "medium/timing/steps0" / timing_records.FILE).read_text())
    seconds = {series["series"]: series["seconds"] for series in stored["series"]}
    row = rows[rows["series"] == "rms+impl=fused"].iloc[0]
    interval = paired_ratio(seconds["rms+impl=fused"], seconds["ln+impl=fused"])
    assert tuple(row[["ratio", "low", "high"]]) == interval
    assert (row["processes"], row["estimates"], row["rounds"]) == (1, (interval.ratio,), len(seconds["rms+impl=fused"]))
    assert (row["machine"], row["processor"]) == ("AMD EPYC", "AMD EPYC")
    assert row["commit"] == stored["session"]["git"]["commit"]


def test_a_damaged_record_is_skipped_and_reported(setting: Path, tmp_path: Path) -> None:
    good = (setting / "timing" / "steps0" / timing_records.FILE).read_text()
    bad = ["{", "[]", good.replace('"session"', '"sesion"'), json.dumps(json.loads(good) | {"processes": []})]
    for value in (math.nan, 1e9, 0.0):  # impossible times
        (stored := json.loads(good))["processes"][0]["seconds"]["rms"][0] = value
        bad.append(json.dumps(stored))
    for number, content in enumerate((*bad, good)):
        folder = tmp_path / "order_embedding" / "demo" / "timing" / f"steps{number}"
        folder.mkdir(parents=True)
        (folder / timing_records.FILE).write_text(content)
    problems: list[str] = []
    rows = timing_records.load(tmp_path, problems=problems)
    assert {Path(folder).name for folder in rows["folder"]} == {"steps7"}
    assert [f"steps{number}/{timing_records.FILE}" in problem for number, problem in enumerate(problems)] == [True] * 7


def test_table_of_a_record(setting: Path) -> None:
    steps = of_record(timing_records.load(setting), "steps0")
    table = savings.of_record(steps).set_index("norm")
    saving = "saving vs LayerNorm (95 % interval)"
    assert table.loc["LayerNorm", saving] == "reference"
    assert table.loc["RMSNorm", saving].startswith(f"{100 * (1 - steps['ratio'][2]):.1f} % (")
    each = [f"{100 * (1 - ratio):.1f}" for ratio in steps["estimates"][2]]
    assert dict(table["saving in each process"].loc[["LayerNorm", "RMSNorm"]]) == {
        "LayerNorm": "",
        "RMSNorm": f"{', '.join(each)} %",
    }
    assert dict(table["paper"]) == {"no norm": "", "LayerNorm": "", "RMSNorm": "40.8 %", "pRMSNorm": "63.9 %"}
    assert set(savings.of_record(steps.assign(kind="layers"))["paper"]) == {
        ""
    }  # the paper's savings are of whole steps
    fused = steps.assign(impl="fused", reference="ln+impl=fused", series=steps["series"] + "+impl=fused")
    assert set(savings.of_record(fused)["paper"]) == {""}  # and of eager norms
    header, *lines = (setting / "timing" / "steps0" / "timing.csv").read_text().splitlines()
    assert not {"seconds", "speed", "sessions"} & set(header.split(","))
    assert max(map(len, lines)) < 2000


def test_an_unwritable_folder_is_reported_before_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "link").symlink_to("/proc/nothing")
    assert timing.main([f"results={tmp_path / 'link'}", "timing.processes=1"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


# Interrupted measurements


@pytest.mark.usefixtures("unwritten_figures")
@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (Interrupted(signal.SIGTERM), 143, "stopped by SIGTERM"),
        (new_process.ProcessError("too little"), 1, "too little"),
        (OSError(11, "no process can be started"), 1, "[Errno 11] no process can be started"),
    ],
    ids=["signal", "failure", "system"],
)
def test_finished_processes_are_kept(
    error: BaseException,
    status: int,
    message: str,
    setting: Path,
    data_root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = readers.read_json(setting / "timing" / "steps0" / timing_records.FILE)

    def measure(*_: object) -> Iterator[dict[str, Any]]:
        yield stored | {"processes": stored["processes"][:1], "stopped": "interrupted"}
        raise error

    monkeypatch.setattr(processes, "measure", measure)
    assert timing.main([f"results={tmp_path}", f"data.root={data_root}"]) == status
    output = capsys.readouterr()
    assert output.err == f"rmsexp: {message}\n"
    assert "one process, not replicated, 8 rounds" in output.out
    (record,) = tmp_path.rglob(timing_records.FILE)
    assert readers.read_json(record)["stopped"] == "interrupted"
