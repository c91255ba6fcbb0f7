"""``scripts/bench_check.py``: a case is measured, and one that is slower twice is named."""

from pathlib import Path
from typing import Any

import bench_check
import pytest
from helpers.documents import ROOT

from rmsexp.rules.ratios import Interval


@pytest.mark.slow
def test_a_case_is_measured_in_two_processes() -> None:
    ratio = bench_check.measure("rms fused 64x240", [ROOT, ROOT], [], 0.0, 4)
    assert 0 < ratio.low <= ratio.ratio <= ratio.high


def test_only_a_case_that_is_slower_twice_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, fine, again = Interval(1.2, 1.1, 1.3), Interval(1.0, 0.9, 1.1), iter([True, False])

    def measure(case: str, folders: list[Path], *_: Any) -> Interval:
        assert len(folders) == 2
        return slow if case.startswith("rms") or (case.startswith("ln") and next(again)) else fine

    monkeypatch.setattr(bench_check, "measure", measure)
    monkeypatch.setattr("sys.argv", ["bench_check.py", "HEAD", "--cases", "*64x240"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert bench_check.main() == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["ln fused 64x240"] * 2 + ["rms fused 64x240"] * 2 + [
        "lstm fused 64x240"
    ]
    assert last == "slower: rms fused 64x240"
