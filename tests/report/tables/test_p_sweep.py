"""The table of quality and time against p of pRMSNorm."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.records import write_run

from rmsexp.compare import load
from rmsexp.records import record
from rmsexp.report.tables import p_sweep as p_table


def test_p_comes_from_the_series_name_or_the_config(tmp_path: Path) -> None:
    write_run(tmp_path, "rms")
    write_run(tmp_path, "prms+p=0.5", seconds_per_step=0.2)
    write_run(tmp_path, "prms+eps=0.1+p=0.5")  # differs in more than p
    write_run(tmp_path, "ln")
    (write_run(tmp_path, "prms") / record.CONFIG).write_text("norm:\n  p: 0.0625\n")
    write_run(tmp_path, "prms", 1)  # p is unknown without a config
    table = p_table.table(load(tmp_path))
    assert list(table) == [*p_table.IDENTITY, "test_error", *p_table.TIME]
    assert table[["series", "p", "seed"]].to_numpy().tolist() == [
        ["prms", 0.0625, 0],
        ["prms+p=0.5", 0.5, 0],
        ["rms", 1.0, 0],
    ]
    assert table["seconds_per_1k_steps"].tolist() == pytest.approx([100, 200, 100])
    errors = load(tmp_path).metrics.query("split == 'test' and step == 400").set_index("series")["error"]
    assert table["test_error"].tolist() == pytest.approx([errors["prms"].iloc[0], errors["prms+p=0.5"], errors["rms"]])


def test_runs_of_the_implementation_with_fewer_runs_are_left_out(tmp_path: Path) -> None:
    for series in ("rms", "prms+p=0.5", "prms+p=0.25", "prms+impl=fused+p=0.5", "ln+impl=fused"):
        write_run(tmp_path, series)
    table = p_table.table(load(tmp_path))
    assert (set(table["impl"]), len(table)) == ({"eager"}, 3)
