"""The curves of a setting, and their drawing with matplotlib."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.comparisons import SERIES, marks_of, training, write_rows, write_setting
from helpers.records import write_run

from rmsexp.compare import load
from rmsexp.records import record
from rmsexp.records.frames import quantities
from rmsexp.report.plots import canvas, setting_curves
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


def test_seeds_without_a_common_step_have_no_mean(tmp_path: Path) -> None:
    for seed, steps in enumerate([[15], [20, 25]]):
        write_rows(write_run(tmp_path, "ln", seed), [training(step, 1.0, 0.1) for step in steps])
    panel = chart(tmp_path, 1).panels[0]
    assert ([mark.kind for mark in panel.marks], panel.note) == (
        ["seed", "seed", "line"],
        "mean of 0 of 2 seeds: LayerNorm",
    )
    canvas.draw(chart(tmp_path, 1))


def test_learning_rates_that_differ_between_norms_are_told(tmp_path: Path) -> None:
    for series, rate in {"none": 0.0003, "ln": 0.003, "rms": 0.003}.items():
        (write_run(tmp_path, series) / record.CONFIG).write_text(f"optim: {{lr: {rate}}}")
    rates = "learning rate 0.003, 0.0003 for no norm"
    assert rates in chart(tmp_path, 1).caption[0]


def test_names_with_dollars_are_drawn_as_text(tmp_path: Path) -> None:
    dataset = {"name": "$HOME/$x_ " + "long " * 100, "digest": "0", "builtin": True}
    write_run(tmp_path / "results", "rms", dataset=dataset)
    canvas.write(canvas.draw(chart(tmp_path / "results", 1)), tmp_path / "figure")  # raises for a damaged formula
    assert "data: $HOME/$x_" in (tmp_path / "figure.svg").read_text()


def test_the_figure_of_an_equal_chart_is_not_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "results", "rms")
    found, path = chart(tmp_path / "results", 1), tmp_path / "figure"
    files = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    canvas.save(found, path)
    times = [file.stat().st_mtime_ns for file in files]
    canvas.save(chart(tmp_path / "results", 1), path)
    assert [file.stat().st_mtime_ns for file in files] == times
    canvas.save(replace(found, title="another"), path)
    assert all(file.stat().st_mtime_ns > time for file, time in zip(files, times, strict=True))
    files[1].unlink()
    canvas.save(replace(found, title="another"), path)
    before = files[1].read_bytes()
    monkeypatch.setattr(canvas, "_code", lambda: b"another way of drawing")
    canvas.save(replace(found, title="another"), path)
    assert before != files[1].read_bytes()


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
