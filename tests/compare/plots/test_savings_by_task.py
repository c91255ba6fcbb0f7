"""The figure of savings on all tasks."""

from __future__ import annotations

import pandas as pd
import pytest

from rmsexp.compare.plots import savings_by_task
from rmsexp.compare.records import timing_records


def record(
    task: str,
    kind: str = "steps",
    reference: str = "ln",
    started: str = "2026-01-02",
    device: str = "a processor",
    **ratios: float,
) -> pd.DataFrame:
    """Return the rows of a timing record; ``ratios``: by norm, the ratio of its time to the reference's."""
    shared = {"task": task, "setting": "small", "kind": kind, "reference": reference, "started": started}
    shared |= {"impl": "eager", "device": device, "threads": 1.0, "torch": "2.15.0"}
    shared["folder"] = f"{device}/{task}/{kind}/{started}"
    all_ratios = {reference: 1.0, **ratios}
    rows = [
        shared | {"series": series, "norm": series, "ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.02}
        for series, ratio in all_ratios.items()
    ]
    return pd.DataFrame(rows).reindex(columns=list(timing_records.COLUMNS))


def test_the_figure_has_the_newest_savings_of_all_tasks_beside_the_papers() -> None:
    timings = pd.concat(
        [
            record("transformer", rms=0.97, none=0.9),
            record("cifar10", rms=0.9, started="2026-01-01"),
            record("cifar10", rms=0.8, prms=0.7),
            record("cifar10", kind="layers", rms=0.2),
            record("rnnsearch", reference="none", rms=1.5),
        ],
        ignore_index=True,
    )
    rows = savings_by_task.rows(timings)
    assert list(zip(rows["task"], rows["series"], rows["ratio"], strict=True)) == [
        ("cifar10", "rms", 0.8),
        ("cifar10", "prms", 0.7),
        ("transformer", "rms", 0.97),
    ]
    (axes,) = savings_by_task.draw(timings).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["transformer, small: RMSNorm", "cifar10, small: pRMSNorm", "cifar10, small: RMSNorm"]
    points = [container[0].get_xdata()[0] for container in axes.containers]
    assert points == pytest.approx([3, 30, 20])
    published = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "D"]
    assert [pytest.approx(values) for values in published] == [[6.9], [23.1], [20.5], []]
    segments = [container[2][0].get_segments()[0][:, 0] for container in axes.containers]
    assert list(segments[2]) == pytest.approx([18, 21])  # a ratio from 0.79 to 0.82


def test_machines_share_a_line_of_the_figure() -> None:
    older = record("transformer", rms=0.9, prms=0.8, started="2026-01-01", device="an older processor")
    (axes,) = savings_by_task.draw(pd.concat([record("transformer", rms=0.97), older], ignore_index=True)).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["transformer, small: pRMSNorm", "transformer, small: RMSNorm"]
    points = [tuple(float(value[0]) for value in container[0].get_data()) for container in axes.containers]
    step = savings_by_task.OFFSET
    expected = [(20, -step), (10, 1 - step), (3, 1)]
    assert sorted(points) == [pytest.approx(point) for point in sorted(expected)]
    published = [
        float(line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "D" and len(line.get_ydata())
    ]
    assert published == pytest.approx([-2 * step, 1 - 2 * step])
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["a processor", "an older processor", "paper, each framework"]
