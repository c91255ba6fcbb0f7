"""Summary and figures in the comparison folder of a setting."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.records import write_run

from rmsexp.compare import draw, load
from rmsexp.records import record
from rmsexp.report.setting_report import NoMetricsError

pytestmark = pytest.mark.slow


def test_draw_writes_all_files_and_they_are_readable(drawn: Path) -> None:
    folder = drawn / "cifar10/demo/comparison"
    assert {path.name for path in folder.iterdir()} == {"curves.png", "curves.svg", "summary.csv", "summary.md"}
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG\r\n")
    svg = ElementTree.fromstring((folder / "curves.svg").read_text())
    assert any("RMSNorm" in (element.text or "") for element in svg.iter())
    assert len(load(drawn).runs) == 11  # the folder of the comparison is not mistaken for a run


def test_a_run_may_lack_metrics_but_not_all_runs_of_a_setting(tmp_path: Path, unwritten_figures: list[str]) -> None:
    (write_run(tmp_path, "ln") / record.METRICS).unlink()
    with pytest.raises(NoMetricsError) as error:
        draw(tmp_path, "cifar10", "demo")
    assert "\n" not in str(error.value)
    write_run(tmp_path, "rms")
    draw(tmp_path, "cifar10", "demo")
    assert "curves" in unwritten_figures


def test_nothing_is_drawn_of_a_setting_without_a_folder(tmp_path: Path) -> None:
    with pytest.raises(NoMetricsError, match="cifar10/demo"):
        draw(tmp_path, "cifar10", "demo")
