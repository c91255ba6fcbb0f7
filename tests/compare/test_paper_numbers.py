"""The paper's numbers and curves as the package holds them: in our names and units, and consistent in themselves."""

from __future__ import annotations

import pandas as pd
import pytest

from rmsexp import config
from rmsexp.compare import paper
from rmsexp.compare.plots import savings_by_task
from rmsexp.compare.records import names, timing_records

NUMBERS = paper.numbers()
TIMED = ["rnnsearch", "transformer", "attentive_reader", "order_embedding", "cifar10"]


def test_each_saving_that_is_printed_follows_from_the_times_that_are_printed() -> None:
    times = NUMBERS[NUMBERS["metric"] == "seconds_per_1k_steps"].set_index(["task", "framework", "norm"])["value"]
    savings = NUMBERS[NUMBERS["metric"] == "saving_vs_ln"]
    assert len(savings) == 14  # rms and prms, in the seven columns of tables 2, 3 (two), 4, 6, 8 and 10
    for row in savings.itertuples():
        place = (row.task, row.framework)
        assert row.value == pytest.approx(1 - times[*place, row.norm] / times[*place, "ln"], abs=6e-4)
        assert row.norm in ("rms", "prms")


def test_the_range_of_the_abstract_is_that_of_the_tables() -> None:
    savings = NUMBERS.loc[NUMBERS["metric"] == "saving_vs_ln", "value"]
    ends = paper.select("all", "lowest saving_vs_ln")["value"], paper.select("all", "highest saving_vs_ln")["value"]
    assert [round(float(end.iloc[0]), 2) for end in ends] == [round(savings.min(), 2), round(savings.max(), 2)]


def test_names_and_units_are_ours() -> None:
    assert set(NUMBERS["task"]) == {*config.options("task"), "invariance", "all"}
    assert {names.norm_of(norm) for norm in NUMBERS["norm"]} <= {*config.options("norm"), ""}
    fractions = NUMBERS[NUMBERS["unit"] == "fraction"]
    assert fractions["value"].between(0, 1).all()
    assert set(fractions["metric"]) >= {"error", "saving_vs_ln", "image_r1", "image_recall"}
    assert NUMBERS["value"].notna().all()
    assert (NUMBERS["spread"].dropna() >= 0).all()
    assert not NUMBERS.duplicated(["table", "task", "framework", "norm", "metric", "data", "note"]).any()


def test_some_numbers_as_they_are_printed() -> None:
    """Of Tables 2, 6, 7, 8 and 10, in our units."""
    times = NUMBERS[NUMBERS["metric"] == "seconds_per_1k_steps"].set_index(["table", "norm"])["value"]
    assert (times["Table 2", "ln"], times["Table 6", "rms"], times["Table 8", "prms"]) == (
        665,
        3330,
        pytest.approx(43.4),
    )
    assert times["Table 10", "bn"] == 76  # 38 s an epoch of 500 steps
    errors = paper.select("cifar10", "error").set_index("norm")["value"]
    assert (errors["rms"], errors["prms"]) == (0.0883, 0.1037)
    recall = paper.select("order_embedding", "image_recall").set_index(["framework", "norm"])["value"]
    assert recall["Theano", "rms"] == pytest.approx((0.390 + 0.748 + 0.863) / 3)
    bleu = paper.select("rnnsearch", "bleu").set_index(["table", "framework", "norm", "data"])["value"]
    assert bleu["Table 3", "Theano Nematus", "prms", "newstest2017"] == 24.0


def test_curves_go_on_in_time_and_end_where_the_figure_does() -> None:
    curves = paper.curves()
    for _, one in curves.groupby(["figure", "norm"]):
        assert one["x"].is_monotonic_increasing
        assert one["x_unit"].nunique() == one["metric"].nunique() == 1
    ends = curves.groupby(["figure", "norm"])[["x", "y"]].last()
    assert tuple(ends.loc["Figure 1a", "none"]) == (10_000, pytest.approx(5.97, abs=0.01))
    assert tuple(ends.loc["Figure 1b", "ln"]) == (pytest.approx(157.0, abs=0.1), pytest.approx(4.27, abs=0.01))
    assert tuple(ends.loc["Figure 4", "rms"]) == (930_000, pytest.approx(16.43))


# All tasks in one figure


def record(
    task: str,
    kind: str = "steps",
    reference: str = "ln",
    started: str = "2026-01-02",
    device: str = "a processor",
    **ratios: float,
) -> pd.DataFrame:
    shared = {"task": task, "setting": "small", "kind": kind, "reference": reference, "started": started}
    shared |= {"impl": "eager", "device": device, "threads": 1.0, "torch": "2.15.0"}
    shared["folder"] = f"{device}/{task}/{kind}/{started}"
    every = {reference: 1.0, **ratios}
    rows = [
        shared | {"series": series, "norm": series, "ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.02}
        for series, ratio in every.items()
    ]
    return pd.DataFrame(rows).reindex(columns=list(timing_records.COLUMNS))


def test_one_figure_has_every_task_s_newest_savings_beside_the_papers() -> None:
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
    shown = savings_by_task.rows(timings)
    assert list(zip(shown["task"], shown["series"], shown["ratio"], strict=True)) == [
        ("cifar10", "rms", 0.8),
        ("cifar10", "prms", 0.7),
        ("transformer", "rms", 0.97),
    ]
    (axes,) = savings_by_task.draw(timings).axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["transformer, small: RMSNorm", "cifar10, small: pRMSNorm", "cifar10, small: RMSNorm"]
    points = [container[0].get_xdata()[0] for container in axes.containers]
    assert points == pytest.approx([3, 30, 20])
    theirs = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "D"]
    assert [pytest.approx(one) for one in theirs] == [[6.9], [23.1], [20.5], []]
    segments = [container[2][0].get_segments()[0][:, 0] for container in axes.containers]
    assert list(segments[2]) == pytest.approx([18, 21])  # a ratio from 0.79 to 0.82


def test_machines_share_a_line_of_the_figure() -> None:
    older = record("transformer", rms=0.9, prms=0.8, started="2026-01-01", device="an older processor")
    (axes,) = savings_by_task.draw(pd.concat([record("transformer", rms=0.97), older], ignore_index=True)).axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["transformer, small: pRMSNorm", "transformer, small: RMSNorm"]
    points = [tuple(float(value[0]) for value in container[0].get_data()) for container in axes.containers]
    step = savings_by_task.OFFSET
    expected = [(20, -step), (10, 1 - step), (3, 1)]
    assert sorted(points) == [pytest.approx(point) for point in sorted(expected)]
    theirs = [float(line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "D" and len(line.get_ydata())]
    assert theirs == pytest.approx([-2 * step, 1 - 2 * step])
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["a processor", "an older processor", "paper, each framework"]
