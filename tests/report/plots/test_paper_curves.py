"""The paper's curves, drawn over ours and as separate figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.records import write_run

from rmsexp.compare import load
from rmsexp.report.plots import paper_curves, setting_curves
from rmsexp.rules import quantities


@pytest.mark.parametrize(("setting", "count"), [("paper", 2), ("demo", 0), ("paper+optim.lr=0.1", 0)])
def test_the_papers_losses_are_drawn_over_ours_in_the_papers_setting_only(
    tmp_path: Path, setting: str, count: int
) -> None:
    write_run(tmp_path, "ln", task="rnnsearch", setting=setting)
    by_step, by_time = setting_curves.draw(load(tmp_path), [quantities.loss("train")]).axes
    papers_lines = [line for line in by_step.lines if "(paper)" in str(line.get_label())]
    assert len(papers_lines) == count
    assert all(line.is_dashed() for line in papers_lines)
    assert not any("(paper)" in str(line.get_label()) for line in by_time.lines)


def test_the_papers_curves_have_separate_figures() -> None:
    drawn = paper_curves.figures("rnnsearch")
    assert list(drawn) == ["Figure 1", "Figure 4"]
    steps, minutes = drawn["Figure 1"].axes
    assert (steps.get_xlabel(), minutes.get_xlabel()) == ("step", "time in training (minutes)")
    assert [len(axes.lines) for axes in (steps, minutes)] == [2, 2]
    assert all(line.is_dashed() for line in steps.lines)
    assert paper_curves.figures("cifar10") == {}
