"""The simulation of timings: the shares of intervals that contain the truth."""

import pytest
import timing_coverage

from rmsexp.records.frames import comparable


def test_reports_warn_of_fewer_rounds_than_were_simulated() -> None:
    assert min(timing_coverage.ROUNDS) == comparable.FEWEST_OF_A_PROCESS


def test_lines_and_their_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing_coverage, "CORRELATIONS", (0.3,))
    monkeypatch.setattr(timing_coverage, "ROUNDS", (20,))
    lines = list(timing_coverage.simulate(100))
    assert [line["spread"] for line in lines] == [0, 0.01, 0.02]
    assert all(0.88 <= line["over_processes"] <= 1 for line in lines)
    assert lines[0]["within_process"] > 0.85 > lines[2]["within_process"]
    assert timing_coverage.markdown(lines).splitlines()[3].startswith("| 0.3 | 20 | 1 % | ")
