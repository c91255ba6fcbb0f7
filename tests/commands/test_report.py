"""The output of ``python -m rmsexp.report`` for complete and for damaged records."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import MagicMock, Mock

import pandas as pd
import pytest
from helpers.records import write_run, write_timing

from rmsexp import compare
from rmsexp.commands import report
from rmsexp.records import record
from rmsexp.report import setting_report
from rmsexp.report.page import html
from rmsexp.report.plots import canvas
from rmsexp.report.setting_report import SettingReport

pytestmark = pytest.mark.slow

SERIES = ("none", "ln", "rms", "prms", "prms+p=0.5")


def write_setting(root: Path, seeds: int = 3, series: Sequence[str] = SERIES, **run: object) -> Path:
    for name in series:
        for seed in range(seeds):
            folder = write_run(root, name, seed, steps=120, seconds_per_step=0.1 + 0.02 * len(name), **run)
            (folder / record.CONFIG).write_text("norm:\n  p: 0.0625\noptim:\n  lr: 0.003\n")
    return root / "cifar10"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write results of two machines; the second also has another learning rate. Tests must not change the files."""
    root = tmp_path_factory.mktemp("results")
    write_setting(root / "first")
    write_setting(root / "second", seeds=1)
    write_setting(root / "second", seeds=1, setting="demo+optim.lr=0.01")
    return root


@pytest.fixture(scope="module")
def written(results: Path) -> Path:
    """Return a copy of ``results`` in which all reports are written, with the figures of ``first`` alone."""
    copy = results.with_name("written")
    shutil.copytree(results, copy)
    write = canvas.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canvas, "write", lambda *args: write(*args) if "first" in args[1].parts else None)
        assert [path.name for path in report.run(copy)] == ["report.html", "report.md", "summary.csv"]
    return copy


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[SettingReport]:
    """Return a list to which the settings of each page are added.

    Pages are empty, and this process draws no figures, since a setting's take a second.
    """
    reports: list[SettingReport] = []

    def page(settings: list[SettingReport], *_: object) -> str:
        reports.extend(settings)
        return ""

    monkeypatch.setattr(html, "page", page)
    monkeypatch.setattr(setting_report, "canvas", Mock())
    return reports


def test_settings_of_two_machines_are_kept_apart(written: Path) -> None:
    table = pd.read_csv(written / "report/summary.csv")
    place = [str(written / root) for root in ("first", "second", "second")]
    settings = table[["root", "setting"]].drop_duplicates().to_numpy().tolist()
    assert settings == [list(pair) for pair in zip(place, ["demo", "demo", "demo+optim.lr=0.01"], strict=True)]
    assert table.groupby(["root", "setting"])["seeds"].max().tolist() == [3, 1, 1]
    first = table[table["root"] == place[0]].set_index("series")
    alone = compare.load(written / "first")
    errors = alone.metrics.query("split == 'test' and step == 120").groupby("series", observed=True)["error"].mean()
    assert first["final"].to_dict() == pytest.approx(errors.to_dict())


def test_every_setting_has_its_figures_and_tables(written: Path) -> None:
    names = {path.name for path in (written / "report/first/cifar10/demo").iterdir() if path.is_file()}
    tables = {f"{name}.csv" for name in ("summary", "paired", "paper", "target")}
    assert {"curves.png", "report.md"} | tables <= names
    text = (written / "report/report.md").read_text()
    assert text.count("### Against LayerNorm, seed by seed") == 3
    assert "Training loss after " in text
    assert "built-in data (shapes)" in text
    assert "| RMSNorm | 3 of 3 |" in text
    assert "no interval: fewer than 3 common seeds" in text
    links = [line.partition("](")[2][:-1] for line in text.splitlines() if line.startswith("![")]
    assert len(links) == 3  # curves and p of three settings
    assert (written / "report" / links[0]).exists()
    assert "%2B" in links[-1]  # a plus sign must be escaped in a link


def test_several_folders_have_one_report(
    results: Path, tmp_path: Path, pages: list[SettingReport], capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of a setting is reported without the other settings beside it."""
    folders = [str(results / "first"), str(results / "second/cifar10/demo")]
    assert report.main([*folders, "--out", str(tmp_path)]) == 0
    assert [page.root for page in pages] == [str(results / "first"), str(results / "second")]
    assert [page.folder for page in pages] == [tmp_path / root / "cifar10/demo" for root in ("first", "second")]
    assert report.main([*folders, str(tmp_path)]) == 1
    assert f"{tmp_path} contains neither" in capsys.readouterr().err


def test_weights_and_biases_get_the_tables_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_setting(tmp_path, seeds=1, series=("ln", "rms"))
    package = MagicMock(Image=str, Table=lambda dataframe: list(dataframe["series"]))
    run = package.init.return_value.__enter__.return_value
    run.dir = "out/wandb/run/files"
    monkeypatch.setitem(sys.modules, "wandb", package)
    assert report.main([str(tmp_path), "--wandb", "offline"]) == 0
    curves = "cifar10/demo/curves"
    expected = {curves: str(tmp_path / f"report/{curves}.png"), "summary": ["ln", "rms"]}
    assert run.log.call_args.args == (expected,)
    options = package.init.call_args.kwargs
    assert (options["project"], options["job_type"], options["mode"]) == ("rmsexp", "report", "offline")
    assert "wandb sync out/wandb/run" in capsys.readouterr().out


def test_a_report_changes_no_file_outside_its_folder(tmp_path: Path, pages: list[SettingReport]) -> None:
    write_run(tmp_path, "rms")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    report.run(tmp_path, out=tmp_path / "elsewhere")
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: time for path, time in after.items() if "elsewhere" not in path.parts} == before
    assert pages[0].folder == tmp_path / "elsewhere/cifar10/demo"


def test_committed_records_are_left_out_unless_they_are_asked_for(
    tmp_path: Path, pages: list[SettingReport], capsys: pytest.CaptureFixture[str]
) -> None:
    results, reference = tmp_path / "results", tmp_path / "results/reference"
    for root in (results, reference / "machine"):
        write_run(root, "rms")
        write_timing(root, {"ln": 1.0, "rms": 0.8})
    first, *_ = report.run(results)
    assert [page.root for page in pages] == [str(results)]
    assert record.left_out(results, "rmsexp.report") in capsys.readouterr().out
    assert first == results / "report/report.html"
    first, *_ = report.run(reference)
    assert [page.root for page in pages[1:]] == [str(reference / "machine")]
    assert first == reference / "report/report.html"


def test_without_runs_the_error_shows_a_command_that_trains_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path / "nothing")])
    assert report.main() == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"python -m rmsexp -m norm=ln,rms results={tmp_path / 'nothing'}" in error


def test_a_setting_without_any_run_json_is_listed_as_a_problem(tmp_path: Path, pages: list[SettingReport]) -> None:
    for name in ("whole", "damaged"):
        write_setting(tmp_path / name, seeds=1, series=SERIES[1:3])
    for path in (tmp_path / "damaged").rglob(record.RUN):
        path.unlink()
    report.run(tmp_path)
    damaged, whole = pages
    assert damaged.tables == []
    assert any("no run.json of this setting has a target metric" in problem for problem in damaged.records.problems)
    assert whole.tables[0].title == "Summary"
    assert pd.read_csv(tmp_path / "report/summary.csv")["root"].unique().tolist() == [str(tmp_path / "whole")]


def test_timing_records_of_another_setting_are_listed_and_not_used(tmp_path: Path, pages: list[SettingReport]) -> None:
    """Somebody copied the newest record from another setting."""
    write_setting(tmp_path, seeds=1, series=SERIES[1:3])
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.8, 0.8]})
    foreign = write_timing(tmp_path, {"ln": 1.0, "rms": [0.5, 0.5]}, number=1, setting="other")
    copied = foreign.rename(tmp_path / "cifar10/demo/timing/steps1")
    report.run(tmp_path)
    (page,) = pages
    assert page.records.problems == [f"{copied}: timing record ignored: it is of cifar10, other"]
    saving = pd.read_csv(tmp_path / "report/cifar10/demo/saving.csv").set_index("series")["saving"]
    assert saving["rms"] == pytest.approx(0.2, abs=1e-3)


def test_a_setting_of_timings_alone_has_a_section(tmp_path: Path, pages: list[SettingReport]) -> None:
    """It has the tables of times and the list of records; of times of layers alone, too."""
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.8, 0.8]})
    write_timing(tmp_path, {"ln": 1.0, "rms": 0.7}, task="rnnsearch", kind="layers")
    report.run(tmp_path)
    steps, layers = pages
    assert [(page.task, page.setting) for page in pages] == [("cifar10", "demo"), ("rnnsearch", "demo")]
    assert [table.title.partition(" (")[0] for table in steps.tables] == [
        "Time per step, and savings relative to LayerNorm",
        "Timing records",
    ]
    assert steps.curves is None
    assert layers.numbers("timings")["record"].tolist() == ["layers0"]
    assert not [*steps.records.problems, *layers.records.problems]
    text = (tmp_path / "report/report.md").read_text()
    assert "## cifar10, demo" in text
    assert "### Time of the norm layers in a step alone, and savings relative to LayerNorm (interleaved" in text


@pytest.mark.parametrize("inside", ["cifar10/demo:", "cifar10:demo", "cifar10/demo:rms", "cifar10/demo/rms:.."])
def test_a_setting_can_be_reported_from_inside_its_folder(
    inside: str, tmp_path: Path, pages: list[SettingReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, "rms")
    where, folder = inside.split(":")
    monkeypatch.chdir(tmp_path / where)
    report.run(Path(folder))
    assert [(page.task, page.setting, page.root) for page in pages] == [("cifar10", "demo", str(tmp_path))]
