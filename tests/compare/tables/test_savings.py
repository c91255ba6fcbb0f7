"""The table of savings, from timing records and from separate runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.comparisons import setting, timings
from helpers.records import write_run

from rmsexp.compare.tables import savings as savings_table


def test_a_timing_record_replaces_unpaired_savings(tmp_path: Path) -> None:
    for series, seconds in {"ln": 0.2, "rms": 0.1, "wn": 0.15}.items():
        write_run(tmp_path, series, seconds_per_step=seconds)
    unpaired = savings_table.table(setting(tmp_path), timings().iloc[:0]).set_index("series")
    assert unpaired["kind"].to_dict() == {"ln": "reference", "rms": "unpaired", "wn": "unpaired"}
    assert unpaired.loc["rms", "saving"] == pytest.approx(0.5)
    table = savings_table.table(setting(tmp_path), timings()).set_index("series")
    assert table["kind"].to_dict() == {"ln": "reference", "rms": "paired", "wn": "unpaired"}
    assert table.loc["rms", ["saving", "low", "high"]].tolist() == pytest.approx([0.2, 0.17, 0.22])
    assert table.loc["rms", "seconds_per_1k_steps"] == 50
    text = savings_table.readable(table.reset_index(), "cifar10").set_index("norm")
    assert text.loc["RMSNorm", "saving vs LayerNorm"] == "20.0 % (17.0 to 22.0 %), paired, 30 rounds"
    assert text.loc["RMSNorm", "saving, paper"] == "20.5 % (Theano (Lasagne), Table 10)"
    assert text.loc["WeightNorm", "saving vs LayerNorm"] == "25.0 %, unpaired"


def test_a_timing_record_with_another_reference_gives_no_saving_over_ln(tmp_path: Path) -> None:
    write_run(tmp_path, "rms")
    table = savings_table.table(setting(tmp_path), timings(reference="none"))
    assert table[["series", "kind", "note"]].to_numpy().tolist() == [["rms", "unknown", "no LN run of this impl"]]
