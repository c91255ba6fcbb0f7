"""The curves of a setting, their drawing with matplotlib, and quality and time against p of pRMSNorm."""

import math
from pathlib import Path

import numpy as np
import pytest
from helpers.comparisons import SERIES, marks_of, write_rows, write_setting
from helpers.records import write_run
from scipy import stats as scipy_stats

from rmsexp.compare import load
from rmsexp.records import record
from rmsexp.records.frames import quantities
from rmsexp.report.plots import canvas, p_sweep, setting_curves
from rmsexp.report.plots.chart import Chart, Mark, Panel, robust

LEFT_OUT = {"step": 1, "time in training (seconds)": 2}  # runs that are not in the means of write_setting
SMOOTH = np.linspace(2.6, 1.4, 50)


def chart(root: Path, count: int | None = None) -> Chart:
    """Return the chart of the first quantities of a setting."""
    records = load(root)
    return setting_curves.chart(records, quantities.recorded(records)[:count])


def line(panel: Panel, series: str) -> Mark:
    (found,) = marks_of(panel, series, "line")
    return found


def test_a_chart_has_a_line_per_series_and_one_per_run_that_is_not_in_its_mean(tmp_path: Path) -> None:
    found = chart(write_setting(tmp_path))
    assert [(panel.y.title, panel.x.title) for panel in found.panels] == [
        (title, x)
        for title in ("training loss (nats)", "test loss (nats)", "test error (%)")
        for x in ("step", "time in training (seconds)")
    ]
    for panel in found.panels:
        assert [mark.series for mark in panel.marks if mark.kind == "line"] == list(SERIES)
        assert sum(mark.kind == "seed" for mark in panel.marks) == LEFT_OUT[panel.x.title]
        assert sum(mark.kind == "cross" for mark in panel.marks) == 1
    figure = canvas.draw(found)
    assert [axes.get_ylabel() for axes in figure.axes] == [panel.y.title for panel in found.panels]
    assert figure.axes[4].get_ylim()[1] > 50  # percent
    assert figure.legends[0].get_texts()[1].get_text() == "LayerNorm (2 seeds)"


def test_means_are_of_the_seeds_that_count_and_notes_count_them(tmp_path: Path) -> None:
    for seed, state in enumerate(["undisturbed", "disturbed", "undisturbed"]):
        write_run(tmp_path, "ln", seed, contention=state)
        write_run(tmp_path, "rms", seed, status="diverged" if seed == 2 else "finished")
    by_step, by_time = chart(tmp_path, 1).panels
    assert by_step.note.split("; ")[0] == "mean of 2 of 3 seeds: RMSNorm"
    assert by_time.note.split("; ")[0] == "mean of 2 of 3 seeds: every norm"
    rows = load(tmp_path).metrics
    losses = rows[(rows["split"] == "train") & (rows["step"] == 400)].set_index(["series", "seed"])["loss"]
    for panel, seeds in ((by_step, [0, 1, 2]), (by_time, [0, 2])):
        assert line(panel, "ln").y[-1] == pytest.approx(losses["ln"][seeds].mean())
        assert line(panel, "ln").low[-1] == pytest.approx(losses["ln"][seeds].min())


def test_bands_are_what_seeds_did_and_spikes_are_noted(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, "ln", seed)
        folder = write_run(tmp_path, "rms", seed)
        rows, _ = record.RunFolder(folder).read_metrics()
        for row in rows:
            row["loss"] = 500.0 if row["step"] == 200 and seed == 0 else 1 / (1 + row["step"]) + 0.4 * (seed == 1)
        write_rows(folder, rows)
    loss = chart(tmp_path, 1).panels[0]
    steps = [1 / (1 + step) for step in line(loss, "rms").x]
    assert line(loss, "rms").low[-1] == pytest.approx(steps[-1])
    assert max(line(loss, "rms").high) == 500
    assert loss.note == "beyond the axis: up to 500 (RMSNorm)"
    assert loss.y.range[1] < 10
    alone = load(tmp_path)
    alone = alone.only(alone.runs.loc[alone.runs["series"] == "rms", "folder"])
    whole = setting_curves.chart(alone, quantities.recorded(alone)[:1]).panels[0]
    assert (whole.y.range[1] > 500, whole.note) == (True, "")  # a single series is drawn whole


@pytest.mark.parametrize("clear", [0, 1])
def test_times_of_disturbed_runs_are_pale(clear: int, tmp_path: Path) -> None:
    write_run(tmp_path, "ln", contention="disturbed")
    write_run(tmp_path, "rms", contention="undisturbed" if clear else "disturbed")
    found = chart(tmp_path, 1)
    assert "pale: " in found.caption[-1]
    looks = {look for look, _ in found.legend}
    pale = [mark.series for mark in found.panels[-1].marks if mark.look not in looks]
    assert pale == (["ln"] if clear else ["ln", "rms"])


def test_a_setting_whose_runs_all_diverged_has_curves(tmp_path: Path) -> None:
    write_run(tmp_path, "none", steps=120, status="diverged")
    panel = chart(tmp_path, 1).panels[0]
    assert [mark.kind for mark in panel.marks] == ["cross", "line"]


def test_names_with_dollars_are_drawn_as_text(tmp_path: Path) -> None:
    dataset = {"name": "$HOME/$x_ " + "long " * 100, "digest": "0", "builtin": True}
    write_run(tmp_path / "results", "rms", dataset=dataset)
    canvas.write(canvas.draw(chart(tmp_path / "results", 1)), tmp_path / "figure")  # raises for a damaged formula
    assert "data: $HOME/$x_" in (tmp_path / "figure.svg").read_text()


def test_a_spike_and_a_first_point_do_not_set_the_range() -> None:
    spiky = SMOOTH.copy()
    spiky[[0, 30]] = 40.0, 198.0
    found = robust("loss", [SMOOTH, spiky], [1.4, 1.4], may_be_log=True)
    assert not found.log
    assert found.range[0] < 1.4 < 2.6 < found.range[1] < 10


def test_the_end_of_a_curve_is_never_beyond_the_range() -> None:
    for end, above in ((80.0, 80.0), (math.nan, 2.6)):
        found = robust("loss", [SMOOTH], [end], may_be_log=False).range
        assert above < found[1] < 1.1 * above


def test_only_a_range_over_decades_is_logarithmic() -> None:
    decaying = 10.0 ** np.linspace(2, -2, 50)
    assert robust("loss", [decaying], [0.01], may_be_log=True).log
    assert not robust("loss", [decaying], [0.01], may_be_log=False).log
    assert not robust("loss", [decaying - 1], [], may_be_log=True).log
    assert robust("loss", [], [], may_be_log=True).range == (0, 1)


def against_p(root: Path) -> Panel:
    records = load(root)
    return p_sweep.quality(p_sweep.table(records), p_sweep.compared(records)[0], records)


def test_quality_against_p_is_drawn(tmp_path: Path) -> None:
    write_run(tmp_path, "rms")
    for p in ("0.1", "0.5"):
        for seed in range(2):
            write_run(tmp_path, f"prms+p={p}", seed, contention="disturbed" if seed else "undisturbed")
    quality = against_p(tmp_path)
    assert quality.y.title == "test error (%), last"
    (mean,) = marks_of(quality, "prms", "line")
    table = p_sweep.table(load(tmp_path))
    expected = table[table["series"] != "rms"].groupby("p")["test_error"].mean() * 100
    assert list(mean.x) == [10, 50]
    assert list(mean.y) == pytest.approx(expected.tolist())


def test_means_of_three_seeds_have_intervals(tmp_path: Path) -> None:
    for seed in range(4):
        write_run(tmp_path, "prms+p=0.5", seed, status="diverged" if seed == 3 else "finished")
        write_run(tmp_path, "rms", seed)
    found, table = against_p(tmp_path), p_sweep.table(load(tmp_path))
    for series, name in (("rms", "rms"), ("prms", "prms+p=0.5")):
        values = table.loc[table["series"] == name, "test_error"].dropna() * 100
        (mean,) = marks_of(found, series, "line")
        assert [mean.low[-1], mean.high[-1]] == pytest.approx(
            list(scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95))
        )


def test_p_comes_from_the_series_name_or_the_config(tmp_path: Path) -> None:
    write_run(tmp_path, "rms")
    write_run(tmp_path, "prms+p=0.5", seconds_per_step=0.2)
    write_run(tmp_path, "prms+eps=0.1+p=0.5")  # differs in more than p
    write_run(tmp_path, "ln")
    (write_run(tmp_path, "prms") / record.CONFIG).write_text("norm:\n  p: 0.0625\n")
    write_run(tmp_path, "prms", 1)  # p is unknown without a config
    table = p_sweep.table(load(tmp_path))
    assert list(table) == [*p_sweep.IDENTITY, "test_error"]
    assert table[["series", "p", "seed"]].to_numpy().tolist() == [
        ["prms", 0.0625, 0],
        ["prms+p=0.5", 0.5, 0],
        ["rms", 1.0, 0],
    ]
    errors = load(tmp_path).metrics.query("split == 'test' and step == 400").set_index("series")["error"]
    assert table["test_error"].tolist() == pytest.approx([errors["prms"].iloc[0], errors["prms+p=0.5"], errors["rms"]])


def test_runs_of_the_implementation_with_fewer_runs_are_left_out(tmp_path: Path) -> None:
    for series in ("rms", "prms+p=0.5", "prms+p=0.25", "prms+impl=fused+p=0.5", "ln+impl=fused"):
        write_run(tmp_path, series)
    table = p_sweep.table(load(tmp_path))
    assert (set(table["impl"]), len(table)) == ({"eager"}, 3)
