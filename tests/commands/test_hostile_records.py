"""One bad record takes neither the report nor the status of the others, and nothing waits for a pipe in its folder."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from unittest.mock import Mock

import pandas as pd
import pytest
from helpers.records import write_run

from rmsexp.campaign import progress
from rmsexp.commands import report
from rmsexp.records import record
from rmsexp.records.record import RunFolder
from rmsexp.report import setting_report
from rmsexp.report.page import html
from rmsexp.system import lock
from rmsexp.train import checkpoint

pytestmark = pytest.mark.slow


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name in ("ln", "rms"):
        for seed in range(2):
            folder = write_run(tmp_path / "results", name, seed)
            (folder / record.CONFIG).write_text("norm:\n  p: 0.5\noptim:\n  lr: 0.003\n")
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

    monkeypatch.setattr(html, "get_plotlyjs", str)  # compressing it takes a fifth of a report's time

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


# --- values; each report has a run or record with each of them


def bad_runs(results: Path, count: int) -> list[Path]:
    """Write runs that differ in their seed, to be damaged; return their folders."""
    return [write_run(results, "rms", seed) for seed in range(2, 2 + count)]


def test_impossible_values_are_listed(results: Path, reported: Callable[..., str]) -> None:
    values = [("loss", "NaN"), ("error", "-1e308"), ("step", "Infinity"), ("seconds", "1e400"), ("loss", "1" * 400)]
    folders = bad_runs(results, len(values))
    for files, (key, value) in zip(map(RunFolder, folders), values, strict=True):
        rows = [json.loads(line) for line in files.metrics_path.read_text().splitlines()]
        for row in rows[-2:]:
            row[key] = dict.fromkeys(row["seconds"], "VALUE") if key == "seconds" else "VALUE"
        files.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows).replace('"VALUE"', value))
        files.write_status("finished", files.read_status()["step"])
    problems, text = reported(figures=True), (results / "report/report.md").read_text()
    for folder in folders:
        assert str(folder / record.METRICS) in problems
        assert str(folder / record.METRICS) in text


# --- names


def test_a_folder_whose_name_is_not_utf_8_is_left_out(results: Path, reported: Callable[..., str]) -> None:
    for place in (b"cifar10/demo/rms\xff", b"cifar10/d\xe9mo", b"\xff", b"campaigns/\xfe"):
        (results / os.fsdecode(place) / "seed0").mkdir(parents=True)
    reported()
    assert len(progress.read(results).runs) == 4
    (results / "report/report.md").read_bytes().decode()


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


THINGS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "dangling link": lambda path: path.symlink_to("nowhere"),
}
things = pytest.mark.parametrize("thing", THINGS.values(), ids=THINGS)


@things
def test_something_else_in_the_place_of_a_record(
    results: Path, thing: Callable[[Path], None], reported: Callable[..., str]
) -> None:
    """One report and status has it in the place of each file of a run, each in another run, and of other records."""
    names = (record.METRICS, record.RUN, record.STATUS, record.CONFIG)
    of_runs = [folder / name for folder, name in zip(bad_runs(results, len(names)), names, strict=True)]
    others = [results / place for place in ("campaigns/a/campaign.json", "cifar10/demo/timing/steps0/timing.json")]
    (of_runs[-1]).touch()
    for path in of_runs:
        path.unlink()
        thing(path)
    for path in others:
        path.parent.mkdir(parents=True)
        thing(path)
    problems = reported()
    # a folder with the name of another record is none
    assert [path for path in of_runs + others * (thing is not Path.mkdir) if str(path) not in problems] == []
    with no_waiting():
        status = progress.read(results)
    assert len(status.runs) == 4 + len(names)
    ended = of_runs[:-1]  # of runs that have ended, the config is not read
    assert [path for path in ended if not any(str(path) in line for line in status.problems)] == []


@things
def test_something_else_in_the_place_of_a_lock(tmp_path: Path, thing: Callable[[Path], None]) -> None:
    folder = RunFolder(tmp_path / "seed0")
    folder.path.mkdir()
    folder.write_status("running", 3)
    thing(folder.lock.path)
    with no_waiting(5):
        if thing is not THINGS["dangling link"]:
            with pytest.raises(OSError, match=r"\.seed0\.lock|cannot be written"):
                folder.read_status()
            with pytest.raises(OSError, match="cannot be written"), lock.Lock(folder.lock.path, folder.path).held():
                pass


@things
def test_something_else_in_the_place_of_a_checkpoint(tmp_path: Path, thing: Callable[[Path], None]) -> None:
    thing(tmp_path / checkpoint.LAST)
    with no_waiting(5), pytest.raises(checkpoint.CheckpointError, match=checkpoint.LAST):
        checkpoint.read(tmp_path / checkpoint.LAST)
