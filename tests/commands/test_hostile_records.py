"""Bad records take neither the report nor the status of the others, and nothing waits for a pipe in its folder.

A report takes a second, so the records of one are damaged in many ways. The report must name each of them.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from unittest.mock import Mock

import pandas as pd
import pytest
from helpers.records import write_run, write_timing

from rmsexp import compare
from rmsexp.campaign import progress
from rmsexp.commands import report
from rmsexp.records import record
from rmsexp.records.record import RunFolder
from rmsexp.report import setting_report
from rmsexp.system import atomic, lock
from rmsexp.train import checkpoint

pytestmark = pytest.mark.slow


def write(root: Path, name: str, seed: int) -> Path:
    folder = write_run(root, name, seed, steps=80)
    (folder / record.CONFIG).write_text("norm:\n  p: 0.5\noptim:\n  lr: 0.003\n")
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name in ("ln", "rms"):
        for seed in range(2):
            write(tmp_path / "results", name, seed)
    return tmp_path / "results"


@contextmanager
def no_waiting(seconds: int = 60) -> Iterator[None]:
    def fail(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise AssertionError("waits for a file")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def reported(results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that writes the report and returns what it says of damaged records.

    It checks that the report lists the other runs. ``figures``: whether they are drawn.
    """

    def report_of_results(*, figures: bool = False) -> str:
        if not figures:
            monkeypatch.setattr(setting_report, "canvas", Mock())
        with no_waiting():
            assert report.main([str(results)]) == 0
        summary = pd.read_csv(results / "report/summary.csv")
        assert set(summary.loc[summary["setting"] == "demo", "series"]) >= {"ln", "rms"}
        problems = capsys.readouterr().err
        assert "Traceback" not in problems
        return problems

    return report_of_results


def with_rows(folder: Path, change: Callable[[str], str]) -> None:
    """Change the rows of a run, with the status that belongs to them."""
    files = RunFolder(folder)
    content = change(files.metrics_path.read_text())
    files.metrics_path.write_text(content)
    files.write_status("finished", files.read_status()["step"])


# --- values


def test_impossible_values_are_listed(results: Path, reported: Callable[..., str]) -> None:
    def change(key: str, value: str, text: str) -> str:
        rows = [json.loads(line) for line in text.splitlines()]
        for row in rows[-2:]:
            row[key] = dict.fromkeys(row["seconds"], "VALUE") if key == "seconds" else "VALUE"
        return "".join(json.dumps(row) + "\n" for row in rows).replace('"VALUE"', value)

    values = [("loss", "NaN"), ("error", "-1e308"), ("step", "Infinity"), ("seconds", "1e400"), ("loss", "9" * 400)]
    paths = list[str]()
    for number, (key, value) in enumerate(values):
        with_rows(folder := write(results, "rms", 2 + number), partial(change, key, value))
        paths.append(str(folder / record.METRICS))
    problems, page = reported(figures=True), (results / "report/report.md").read_text()
    assert all(path in problems and path in page for path in paths)


UNKNOWN: list[dict[str, object]] = [
    {"target": {"split": "test", "metric": "error", "mode": "best", "selection": "valid"}},
    {"recipe_steps": 1e308},
    {"seed": 10**400},
    {"parameters": {"total": 10**400}},
    {"quantities": [{"split": "test", "metric": "error", "label": 3, "unit": "", "log": True}]},
]


def test_unknown_values_in_run_json_are_listed(results: Path, reported: Callable[..., str]) -> None:
    paths = [write(results, "rms", 2 + number) / record.RUN for number in range(len(UNKNOWN))]
    for path, changes in zip(paths, UNKNOWN, strict=True):
        atomic.write_json(path, json.loads(path.read_text()) | changes)
    problems = reported()
    assert all(f"{path}: " in problems for path in paths)


def test_timings_with_impossible_times_are_listed(results: Path, reported: Callable[..., str]) -> None:
    paths = []
    for number, value in enumerate(("NaN", "Infinity", "1e308", "-1.0")):
        paths.append(path := write_timing(results, {"ln": 1.0, "rms": 0.9}, number=number) / "timing.json")
        stored = json.loads(path.read_text())
        for process in stored["processes"]:
            for seconds in process["seconds"].values():
                seconds[0] = "VALUE"
        path.write_text(json.dumps(stored).replace('"VALUE"', value))
    problems = reported()
    assert all(f"{path}: timing record ignored" in problems for path in paths)


# --- names


def test_a_folder_whose_name_is_not_utf_8_is_left_out(results: Path, reported: Callable[..., str]) -> None:
    for place in (b"cifar10/demo/rms\xff", b"cifar10/d\xe9mo", b"\xff", b"campaigns/\xfe"):
        (results / os.fsdecode(place) / "seed0").mkdir(parents=True)
    reported()
    assert len(progress.read(results).runs) == 4
    (results / "report/report.md").read_bytes().decode()


def test_dollar_signs_of_records_are_no_formulas(tmp_path: Path) -> None:
    for name in ("ln", "rms+x=$x^{2$_", "rms+$\\frac$"):
        write_run(tmp_path, name, 0, steps=80)
        write_run(tmp_path, name, 1, steps=80, setting="$\\demo$ $x^{2$_")
    for setting in ("demo", "$\\demo$ $x^{2$_"):
        folder = compare.draw(tmp_path, "cifar10", setting)
        assert (folder / "curves.png").is_file()


def test_what_a_setting_raises_is_listed_with_its_folder(
    results: Path, reported: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ln", "rms"):
        write_run(results, name, 0, setting="other")
    folder = results / "cifar10/other"
    write = report.setting_report.write

    def refuse(path: Path, *arguments: object) -> object:
        if path == folder:
            raise OverflowError("too large")
        return write(path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(report.setting_report, "write", refuse)
    assert f"{folder}: this setting is not reported: OverflowError('too large')" in reported()


# --- what is in the place of a file


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


THINGS = (pipe, device, Path.mkdir, dangling)
things = pytest.mark.parametrize("thing", THINGS, ids=[thing.__name__ for thing in THINGS])


def test_something_else_in_the_place_of_files(results: Path, reported: Callable[..., str]) -> None:
    files = [(name, thing) for name in (record.METRICS, record.RUN, record.STATUS, record.CONFIG) for thing in THINGS]
    paths = [write(results, "rms", 2 + number) / name for number, (name, _) in enumerate(files)]
    for path, (_, thing) in zip(paths, files, strict=True):
        path.unlink()
        thing(path)
    others = []
    for number, thing in enumerate(THINGS):
        for place in (f"campaigns/{number}/campaign.json", f"cifar10/demo/timing/steps{number}/timing.json"):
            (path := results / place).parent.mkdir(parents=True)
            thing(path)
            others += [path] * (thing is not Path.mkdir)  # a folder of this name is no record
    problems = reported()
    assert [path for path in [*paths, *others] if str(path) not in problems] == []
    with no_waiting():
        status = progress.read(results)
    assert len(status.runs) == 4 + len(paths)
    missing = {path.name for path in paths if not any(str(path) in line for line in status.problems)}
    assert missing <= {record.CONFIG}  # of ended runs it is not read


@things
def test_something_else_in_the_place_of_a_lock(tmp_path: Path, thing: Callable[[Path], None]) -> None:
    folder = RunFolder(tmp_path / "seed0")
    folder.path.mkdir()
    folder.write_status("running", 3)
    thing(folder.lock_path)
    with no_waiting(5):
        if thing is not dangling:
            with pytest.raises(OSError, match=r"\.seed0\.lock|cannot be written"):
                folder.read_status()
            with pytest.raises(OSError, match="cannot be written"), lock.Lock(folder.lock_path, folder.path).held():
                pass


@things
def test_something_else_in_the_place_of_a_checkpoint(tmp_path: Path, thing: Callable[[Path], None]) -> None:
    thing(tmp_path / checkpoint.LAST)
    with no_waiting(5), pytest.raises(checkpoint.CheckpointError, match=checkpoint.LAST):
        checkpoint.read(tmp_path / checkpoint.LAST)
