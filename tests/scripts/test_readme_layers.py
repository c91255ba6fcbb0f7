"""The tables of repeated benchmarks of layers, which scripts/readme_numbers.py writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from readme_blocks import layers
from readme_blocks.evidence import Evidence


def write(folder: Path, number: int, ratio: float, code: str, dirty: bool = False) -> None:
    """Write the record of a benchmark of one shape, in which fused RMSNorm took ``ratio`` times torch's time."""
    seconds = {"rms fused": ratio, "nn.LayerNorm": 1.0, "nn.RMSNorm": 2.0, "prms fused": ratio}
    case = {"shape": "64x240", "passes": "forward + backward", "elements": 15360, "reference": "nn.LayerNorm"}
    case |= {"seconds": {layer: [each, each * 1.01] * 3 for layer, each in seconds.items()}}
    session: dict[str, Any] = {
        "started": f"2026-11-24T0{number}:00:00+00:00",
        "code": code,
        "device": "AMD EPYC",
        "threads": 1,
    }
    path = folder / "amd/bench" / f"norms{number}" / "bench.json"
    path.parent.mkdir(parents=True)
    session |= {"versions": {"torch": "2.15.0"}, "git": {"commit": "abc", "dirty": dirty}}
    content = {"dtype": "float32", "session": session}
    path.write_text(json.dumps(content | {"measurements": [case | {"contention": {"state": "clear"}}]}))


def test_the_medians_are_over_the_records_of_the_newest_code(tmp_path: Path) -> None:
    for number, (ratio, code) in enumerate([(5.0, "old"), (0.9, "new"), (1.3, "new"), (1.0, "new")]):
        write(tmp_path, number, ratio, code)
    lines = layers.norms(Evidence(tmp_path, tmp_path)).splitlines()
    assert "| 64x240 | 1.000 (0.900 to 1.300) | 0.500 (0.450 to 0.650) | 1.000 (1.000 to 1.000) |" in lines
    assert any(line.startswith("**Forward + backward, 3 such measurements**, AMD EPYC, one thread") for line in lines)


def test_uncommitted_changes_are_said(tmp_path: Path) -> None:
    write(tmp_path, 0, 1.0, "code")
    assert "uncommitted" not in layers.norms(Evidence(tmp_path, tmp_path))
    write(tmp_path, 1, 1.0, "code", dirty=True)
    assert "Measured with [uncommitted changes](" in layers.norms(Evidence(tmp_path, tmp_path))


@pytest.mark.parametrize("codes", [["new"], ["old", "new"]])
def test_a_single_measurement_has_no_medians(tmp_path: Path, codes: list[str]) -> None:
    for number, code in enumerate(codes):
        write(tmp_path, number, 1.0, code)
    assert "such measurements" not in layers.norms(Evidence(tmp_path, tmp_path))


def test_torchs_own_layers_are_compared(tmp_path: Path) -> None:
    write(tmp_path, 0, 1.0, "code")
    found = layers.of_torch(Evidence(tmp_path, tmp_path))
    assert "`nn.RMSNorm` takes 2.0 times (AMD EPYC) as long as its `nn.LayerNorm`" in found
