"""Fixtures with a page of three settings, for the tests of the page's content and of its controls."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.comparisons import report
from helpers.records import write_run

from rmsexp.report.page import html
from rmsexp.report.setting_report import SettingReport
from rmsexp.report.tables.formats import NO_VALUE
from rmsexp.report.tables.markup import Table


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write runs of three settings and return the results folder.

    The settings are demo of cifar10, with a disturbed and a diverged run, small of cifar10, and tiny of rnnsearch.
    """
    folder = tmp_path_factory.mktemp("results")
    for seed in range(3):
        write_run(folder, "ln", seed)
    write_run(folder, "rms", 0, contention="disturbed")
    write_run(folder, "rms+impl=fused", 0)
    write_run(folder, "wn", 0, status="diverged", steps=120)
    for series in ("none", "bn"):
        write_run(folder, series, 0, setting="small", dataset={"name": "CIFAR-10", "digest": "0", "builtin": False})
    write_run(folder, "rms", 0, setting="tiny", task="rnnsearch")
    return folder


TABLE = pd.DataFrame(
    [
        ["LayerNorm", "9.5 ± 0.2 %", "reference"],
        ["RMSNorm", "10.1 %", "7.0 %"],
        ["WeightNorm", NO_VALUE, f"{NO_VALUE} (diverged)"],
    ],
    columns=["norm", "test error", "saving"],
)


@pytest.fixture(scope="module")
def reports(root: Path) -> list[SettingReport]:
    texts: dict[str, Any] = {"sentences": ["LayerNorm is ahead."], "notes": ["built-in data (shapes)"]}
    return [
        report(root, tables=[Table("quality", "Quality & time", TABLE, TABLE)], **texts),
        report(root, setting="small", tables=[Table("summary", "Summary", TABLE, TABLE.iloc[:2])]),
        report(root, "rnnsearch", "tiny"),
    ]


@pytest.fixture(scope="module")
def page(reports: list[SettingReport]) -> str:
    return html.page(reports)
