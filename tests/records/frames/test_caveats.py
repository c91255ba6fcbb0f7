"""The caveats of a setting, and the exclusion of diverged runs from means."""

from __future__ import annotations

import math
from pathlib import Path

from helpers.comparisons import summary
from helpers.records import write_run

from rmsexp.compare import load
from rmsexp.records.frames import caveats


def test_diverged_runs_are_listed_and_not_averaged(results: Path) -> None:
    row = summary(results).loc["none"]
    assert row["status"] == "1 finished, 1 diverged at step 120"
    assert math.isnan(row["final_sd"])
    assert any("diverged" in line and "no norm seed 1 (at step 120)" in line for line in caveats.caveats(load(results)))


def test_caveats_name_data_machine_and_excluded_runs(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", steps=120, contention="contended")
    path = write_run(tmp_path, "ln") / "run.json"
    path.write_text(path.read_text().replace('"dirty": false', '"dirty": true'))
    text = "\n".join(caveats.caveats(load(tmp_path)))
    assert "built-in data (shapes); the paper's setting is scale=paper" in text
    assert "impl eager; device AMD EPYC; threads 2; torch 2.15.0" in text
    assert "RMSNorm seed 0 (finished, 120 of 400 steps)" in text
    assert "RMSNorm seed 0 (contended)" in text
    assert "alone: LayerNorm seed 0 (commit abc)" in text
