"""Synthetic settings and evaluations for tests of comparisons."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from helpers.records import write_run
from rmsexp.compare import load
from rmsexp.records import record
from rmsexp.records.frames import quantities
from rmsexp.records.frames.load import Records
from rmsexp.report.plots import setting_curves
from rmsexp.report.plots.chart import Kind, Mark, Panel
from rmsexp.report.setting_report import SettingReport
from rmsexp.report.tables import summary as summary_table
from rmsexp.system import clock

SERIES = ("none", "ln", "rms", "prms", "bn", "wn")


def write_setting(tmp_path: Path) -> Path:
    """Write 11 runs of six norms, one of them disturbed and one diverged, and return the results folder."""
    for series in SERIES:
        write_run(tmp_path, series, 0)
    for series in SERIES[1:4]:
        write_run(tmp_path, series, 1)
    write_run(tmp_path, "wn", 1, contention="disturbed")
    write_run(tmp_path, "none", 1, steps=120, status="diverged")
    return tmp_path


def summary(results: Path, setting: str = "demo") -> pd.DataFrame:
    """Return the summary of a setting of CIFAR-10, indexed by series."""
    return summary_table.table(load(results).select("cifar10", setting)).set_index("series")


def write_rows(folder: Path, rows: list[record.Row]) -> None:
    """Replace all rows of a run's metrics by ``rows``."""
    (folder / record.METRICS).unlink()
    record.RunFolder(folder).append(rows)


def training(step: int, loss: float, seconds_per_step: float) -> record.Row:
    """Return a training row; its time is ``step * seconds_per_step``, all in the clock's bucket train."""
    seconds = {**dict.fromkeys(clock.BUCKETS, 0.0), "train": step * seconds_per_step}
    return {"step": step, "split": "train", "loss": loss, "seconds": seconds}


def evaluated(step: int, error: float, seconds_per_step: float = 0.1) -> record.Row:
    """Return the row of an evaluation on the test split, whose loss equals its error."""
    return training(step, error, seconds_per_step) | {"split": "test", "error": error}


def write_errors(root: Path, series: str, seed: int, errors: list[float], **run: object) -> Path:
    """Write a run of cifar10 with these test errors at steps 0, 100, … and no training rows; return its folder."""
    folder = write_run(root, series, seed, steps=100 * (len(errors) - 1), **run)
    write_rows(folder, [evaluated(100 * number, error) for number, error in enumerate(errors)])
    return folder


def setting(root: Path) -> Records:
    return load(root).select("cifar10", "demo")


def report(root: Path, task: str = "cifar10", setting: str = "demo", **more: Any) -> SettingReport:
    """Return the report of a setting with its curves, as far as its records name a target metric."""
    records = load(root).select(task, setting)
    with suppress(ValueError):
        more = {"curves": setting_curves.chart(records, quantities.recorded(records))} | more
    return SettingReport(root / task / setting, root / "report", records, **more)


def named(folder: Path, series: str) -> None:
    """Set the series of a run, which its folder is named after, and the error in its ``status.json`` to a text."""
    for file, key in (("run.json", "series"), ("status.json", "error")):
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: series}))
    folder.parent.rename(folder.parent.with_name(series))


def marks_of(panel: Panel, series: str, kind: Kind) -> list[Mark]:
    """Return the marks of a kind and a series in a panel."""
    return [mark for mark in panel.marks if (mark.series, mark.kind) == (series, kind)]
