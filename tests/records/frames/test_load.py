"""Loading records of runs, and the list of files that are missing or damaged."""

import math
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers.comparisons import summary
from helpers.records import write_run

from rmsexp.compare import load
from rmsexp.records import record
from rmsexp.system import atomic, readers


def test_load_returns_one_row_per_run_and_one_per_event(results: Path) -> None:
    records = load(results)
    assert len(records.runs) == 11
    assert records.problems == []
    run = records.runs.set_index(["series", "seed"]).loc[("rms", 1)]
    assert (run["task"], run["setting"], run["impl"], run["status"], run["step"]) == (
        ("cifar10", "demo", "eager", "finished", 400)
    )
    rows = records.metrics.query("series == 'rms' and seed == 1 and split == 'train'")
    assert list(rows["step"]) == list(range(4, 401, 4))
    np.testing.assert_allclose(rows["time"], rows["step"] * 0.1)
    np.testing.assert_allclose(rows["time"], rows["seconds_data"] + rows["seconds_train"])


def test_a_folder_without_runs_gives_empty_frames(tmp_path: Path) -> None:
    records = load(tmp_path / "missing")
    assert [str(tmp_path / "missing") in problem for problem in records.problems] == [True]
    assert records.runs.empty
    assert records.metrics.empty
    assert {"folder", "time_state"} <= set(records.runs)
    assert {"step", "split", "time"} <= set(records.metrics)


def test_a_run_in_too_few_folders_is_listed() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder, record.RUN).write_text("{}")
        assert [folder in problem for problem in load(folder).problems] == [True]


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff\xfe"])
@pytest.mark.parametrize("name", [record.METRICS, record.STATUS, record.RUN])
def test_a_damaged_or_missing_file_is_listed_and_the_run_is_loaded(
    results: Path, name: str, content: bytes | None
) -> None:
    path = results / "cifar10/demo/rms/seed0" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    elif name == record.RUN:
        path.symlink_to(results / "nothing")
    records = load(results)
    assert len(records.runs) == 11
    assert len(records.problems) == (0 if name == record.METRICS and content == b"" else 1)
    assert all(str(path) in problem for problem in records.problems)
    run = records.runs.set_index(["series", "seed"]).loc[("rms", 0)]
    assert (run["task"], run["setting"]) == ("cifar10", "demo")
    assert summary(results).loc["rms", "seeds"] == 2


def test_a_setting_has_the_problems_of_its_own_runs(tmp_path: Path) -> None:
    for setting in ("demo", "demo+optim.lr=0.01"):
        (write_run(tmp_path, setting=setting) / record.STATUS).unlink()
    records = load(tmp_path)
    selected = records.select("cifar10", "demo").problems
    assert selected == [f"{tmp_path}/cifar10/demo/rms/seed0/{record.STATUS} is missing"]
    selected.append("another")
    assert len(records.problems) == 2


def test_a_copied_run_does_not_count_as_one_of_another_seed(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "rms")
    path = folder.with_name("seed1") / record.RUN
    shutil.copytree(folder, path.parent)
    records = load(tmp_path)
    assert records.problems == [f"{path} describes the run rms/seed0, so this copy is left out"]
    assert records.runs[["setting", "series", "seed"]].to_numpy().tolist() == [["demo", "rms", 0]]
    assert set(records.metrics["folder"]) == set(records.runs["folder"])
    assert records.settings()[tmp_path / "cifar10/demo"].problems == records.problems


def test_a_renamed_setting_is_read_as_it_was_recorded(tmp_path: Path) -> None:
    for series in ("ln", "rms"):
        write_run(tmp_path, series)
    (tmp_path / "cifar10/demo").rename(tmp_path / "cifar10/before")
    records = load(tmp_path)
    assert records.problems == []
    assert records.runs[["setting", "series"]].to_numpy().tolist() == [["demo", "ln"], ["demo", "rms"]]


@pytest.mark.parametrize("value", ["0.5", [0.5], None, 10**400])
def test_a_metric_that_is_no_number_is_nan(value: object, tmp_path: Path) -> None:
    run = record.RunFolder(write_run(tmp_path, "rms", steps=40))
    seconds = {"data": 1.0, "train": None}
    run.append([{"step": 44, "split": "test", "loss": value, "bleu": 2.5, "seconds": 3 if value else seconds}])
    last = load(tmp_path).metrics.iloc[-1]
    assert math.isnan(last["loss"])
    assert math.isnan(last["time"])
    assert last["bleu"] == 2.5


UNDISTURBED = {"contention": {"state": "undisturbed"}}


@pytest.mark.parametrize(
    ("sessions", "state"),
    [
        ([UNDISTURBED | {"comparable": True}] * 2, "undisturbed"),
        ([UNDISTURBED, {"contention": {"state": "disturbed"}}], "disturbed"),
        ([UNDISTURBED, UNDISTURBED | {"comparable": False}], "disturbed"),
        ([UNDISTURBED, {}], "disturbed"),
        ([{"contention": {"state": "undisturbed", "waited": 0.014}}], "undisturbed"),
        ([{"contention": {"state": "undisturbed", "waited": 0.016}}], "disturbed"),  # when the limit was 0.05
        ([{"contention": {"state": "clear"}}], "undisturbed"),  # the words of older records
        ([UNDISTURBED, {"contention": {"state": "contended"}}], "disturbed"),
        ([], "disturbed"),
    ],
)
def test_a_run_is_undisturbed_only_if_every_session_was_undisturbed(
    tmp_path: Path, sessions: list[object], state: str
) -> None:
    write_run(tmp_path, "rms", sessions=sessions)
    assert load(tmp_path).runs["time_state"].tolist() == [state]


@pytest.mark.parametrize("reference", [{"arithmetic": 0.001}, {"arithmetic": 10**400, "memory": 0.002}])
def test_damaged_probes_of_an_older_record_are_listed(tmp_path: Path, reference: object) -> None:
    probes = {"number": 20, "median": {"arithmetic": 0.001, "memory": 0.002}, "reference": reference}
    folder = write_run(tmp_path, "rms", sessions=[{"contention": {"state": "undisturbed", "probes": probes}}])
    assert [str(folder / record.RUN) in problem for problem in load(tmp_path).problems] == [True]


UNKNOWN = [{"target": {"mode": "best"}}, {"recipe_steps": 1e308}, {"seed": 10**400}, {"parameters": {"total": 10**400}}]
UNKNOWN += [{"evaluation": ["scored"]}, {"quantities": [{"split": "test", "metric": "error", "label": 3}]}]


@pytest.mark.parametrize("change", UNKNOWN)
def test_unknown_values_in_the_description_of_a_run_are_listed(change: dict[str, object], tmp_path: Path) -> None:
    path = write_run(tmp_path, "rms") / record.RUN
    atomic.write_json(path, readers.read_json(path) | change)
    assert [f"{path}: {next(iter(change))}" in problem for problem in load(tmp_path).problems] == [True]


def test_times_of_several_processes_are_of_another_machine(tmp_path: Path) -> None:
    session = {"machine": {"id": "3f"}}
    write_run(tmp_path, "ln", sessions=[session])
    write_run(tmp_path, "rms", sessions=[session | {"world_size": 2}])
    assert load(tmp_path).runs["machine"].tolist() == ["3f", "3f, 2 processes"]
