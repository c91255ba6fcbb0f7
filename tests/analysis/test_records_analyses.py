"""``python -m rmsexp.analysis p_sweep`` and ``init_center`` on synthetic records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.analyses import analysed
from helpers.records import make_row, write_run
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from scipy import stats

from rmsexp.analysis import init_center, p_sweep
from rmsexp.records import record
from rmsexp.report import paper
from rmsexp.report.plots import style
from rmsexp.report.tables import formats
from rmsexp.system import atomic

AIM = {"split": "test", "metric": "bleu", "mode": "max", "selection": "valid"}
CENTRED = "demo+model.init_center=0.2"


def sweep(root: Path, *series: str, p: float = 0.125, **run: Any) -> None:
    """Write two runs of each series of cifar10. ``p`` is stored in the config of the series "prms"."""
    for name in series:
        for seed in (0, 1):
            folder = write_run(root, name, seed, **run)
            if name == "prms":
                atomic.write_atomic(folder / record.CONFIG, f"norm:\n  name: prms\n  p: {p}\n")


def translated(root: Path, series: str, bleu: list[float | None], *, setting: str = CENTRED, **run: Any) -> Path:
    """Write a run of rnnsearch with these validation BLEU at steps 0, 10, …, and return its folder.

    The validation losses are 5, 4, …. None stands for an evaluation without BLEU.
    """
    written = write_run(root / "written", series, setting=setting, task="rnnsearch", target=AIM, **run)
    folder = root / "rnnsearch" / Path(*written.parts[-3:])
    folder.parent.mkdir(parents=True, exist_ok=True)
    written.rename(folder)
    (folder / record.METRICS).unlink()
    rows = [
        make_row(10 * k, 5 - k, "valid") | ({} if value is None else {"bleu": value}) for k, value in enumerate(bleu)
    ]
    record.RunFolder(folder).append(rows)
    return folder


def lines(axes: Axes) -> dict[str, list[float]]:
    """Return the y values of each line, by label."""
    return {str(line.get_label()): np.asarray(line.get_ydata(), float).tolist() for line in axes.lines}


def only(figures: Any) -> Figure:
    (figure,) = figures.values()
    assert isinstance(figure, Figure)
    return figure


def test_p_sweep_lists_runs_by_series_and_p(tmp_path: Path) -> None:
    sweep(tmp_path, "prms", "prms+p=0.5", "prms+p=1.0", "rms", "ln", "prms+eps=0.1+p=0.5")
    finding = p_sweep.analyse(tmp_path)
    (table,) = finding.tables
    assert table.name == "cifar10/demo/p_sweep"
    assert list(zip(table.values["series"], table.values["p"], table.values["seed"], strict=True)) == [
        (series, p, seed)
        for series, p in (("prms", 0.125), ("prms+p=0.5", 0.5), ("prms+p=1.0", 1.0), ("rms", 1.0))
        for seed in (0, 1)
    ]
    last = table.values["test_error"].groupby(table.values["series"]).mean() * 100
    assert table.text["norm"].tolist() == ["pRMSNorm", "pRMSNorm", "pRMSNorm", "RMSNorm"]
    assert table.text["p"].tolist() == ["12.5 %", "50 %", "100 %", "100 %"]
    assert table.text["seeds"].tolist() == ["2"] * 4
    assert table.text["test error (%), last"].astype(float).tolist() == pytest.approx(last.tolist(), rel=1e-3)
    assert table.text["seconds per 1k steps"].astype(float).tolist() == pytest.approx([100] * 4)
    quality, time = only(finding.figures).axes
    assert lines(quality)["pRMSNorm"] == pytest.approx(last.tolist()[:3])
    assert lines(quality)["RMSNorm"] == pytest.approx([last["rms"]] * 2)
    assert quality.get_xlabel() == time.get_xlabel() == "p (% of the units)"


def test_p_sweep_has_intervals_and_counts_diverged_runs(tmp_path: Path) -> None:
    sweep(tmp_path, "prms+p=0.25", "prms+p=0.5", "rms")
    write_run(tmp_path, "prms+p=0.5", 2)
    write_run(tmp_path, "prms+p=0.25", 2, status="diverged")
    finding = p_sweep.analyse(tmp_path)
    (table,) = finding.tables
    assert table.text["seeds"].tolist() == ["3", "3", "2"]
    assert table.text["diverged or failed"].tolist() == ["1", "0", "0"]
    values = table.values.loc[table.values["p"] == 0.5, "test_error"] * 100
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert table.text.loc[1, "test error (%), last"] == f"{formats.number(values.mean())} ± {(high - low) / 2:.2g}"
    assert "±" not in table.text.loc[0, "test error (%), last"]
    assert any("whose quality is not drawn: 1" in text.get_text() for text in only(finding.figures).findobj(Text))


def test_p_sweep_has_a_table_per_setting_and_machine(tmp_path: Path) -> None:
    for machine in ("one", "two"):
        sweep(tmp_path / machine, "prms", "prms+p=0.5", contention="contended" if machine == "one" else "clear")
    sweep(
        tmp_path / "two", "prms", "prms+p=0.5", setting="small", dataset={"name": "x", "digest": "", "builtin": False}
    )
    sweep(tmp_path / "two", "prms+p=0.5", "rms", setting="demo+optim.lr=0.1")  # only one p
    sweep(tmp_path / "two", "prms", "prms+p=0.125", setting="demo+optim.lr=0.2")  # twice the same p
    finding = p_sweep.analyse(tmp_path)
    names = [f"{below}/p_sweep" for below in ("one/cifar10/demo", "two/cifar10/demo", "two/cifar10/small")]
    assert [table.name for table in finding.tables] == list(finding.figures) == names
    assert [("built-in data" in table.title) for table in finding.tables] == [True, True, False]
    assert set(finding.tables[0].values["time_state"]) == {"contended"}
    assert set(finding.tables[1].values["time_state"]) == {"clear"}
    contended, clear = (table.text["seconds per 1k steps"].tolist() for table in finding.tables[:2])
    assert contended == [formats.NO_VALUE] * 2  # contended times are excluded from the means
    assert [float(seconds) for seconds in clear] == pytest.approx([100, 100])


def test_p_sweep_of_a_single_setting_is_written_to_the_output_folder_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep(tmp_path, "prms", "prms+p=0.5")
    broken = tmp_path / "cifar10" / "demo" / "prms" / "seed1" / record.STATUS
    broken.write_text("{")
    out = tmp_path / "out"
    for results in (tmp_path / "cifar10" / "demo", tmp_path):
        assert analysed(monkeypatch, "p_sweep", results, "--out", out) == 0
        output = capsys.readouterr().out
        assert f"{broken} is not JSON" in output
        assert max(len(line) for line in output.splitlines() if str(tmp_path) not in line) < 110
    for folder in (out, out / "cifar10" / "demo"):
        assert {path.name for path in folder.glob("p_sweep.*")} == {f"p_sweep.{end}" for end in ("csv", "png", "svg")}
    assert len(pd.read_csv(out / "p_sweep.csv")) == 4


def test_a_setting_whose_run_files_are_all_damaged_is_left_out(tmp_path: Path) -> None:
    for setting in ("demo", "demo+optim.lr=0.1"):
        sweep(tmp_path, "prms+p=0.25", "prms+p=0.5", setting=setting)
    for path in (tmp_path / "cifar10" / "demo").rglob(record.RUN):
        path.write_text("[]")
    assert [table.name for table in p_sweep.analyse(tmp_path).tables] == ["cifar10/demo+optim.lr=0.1/p_sweep"]


def test_init_center_has_every_series_and_the_paper(tmp_path: Path) -> None:
    translated(tmp_path, "ln", [0, 1, 2])
    translated(tmp_path, "rms", [0, 4, 8])
    translated(tmp_path, "rms", [0, 2, 10], seed=1)
    translated(tmp_path, "none", [0, 9, 9], status="diverged")
    translated(tmp_path, "rms", [50, 50, 50], setting="demo")
    write_run(tmp_path, "rms", setting=CENTRED)  # another task
    finding = init_center.analyse(tmp_path)
    (table,) = finding.tables
    assert table.name == f"rnnsearch/{CENTRED}/init_center"
    columns = ["metric", "series", "runs", "step", "last", "lowest", "highest", "diverged", "failed"]
    assert table.values[columns].fillna(-1).to_numpy().tolist() == [
        ["bleu", "none", 0, -1, -1, -1, -1, 1, 0],
        ["bleu", "ln", 1, 20, 2, 0, 2, 0, 0],
        ["bleu", "rms", 2, 20, 9, 0, 9, 0, 0],
        ["loss", "none", 0, -1, -1, -1, -1, 1, 0],
        ["loss", "ln", 1, 20, 3, 3, 5, 0, 0],
        ["loss", "rms", 2, 20, 3, 3, 5, 0, 0],
    ]
    assert table.text.iloc[0].tolist() == ["BLEU", "no norm", "0", "1", "0", *[formats.NO_VALUE] * 4]
    assert table.text.iloc[2].tolist() == ["BLEU", "RMSNorm", "2", "0", "0", "20", "9", "0", "9"]
    assert any("not drawn: no norm 1" in text.get_text() for text in only(finding.figures).texts)
    bleu, loss, published = only(finding.figures).axes
    assert lines(bleu)["LayerNorm"] == [0, 1, 2]
    assert lines(bleu)["RMSNorm"] == [0, 3, 9]
    drawn = sorted(line.get_ydata().tolist() for line in bleu.lines)
    assert drawn == [[0, 1, 2], [0, 1, 2], [0, 2, 10], [0, 3, 9], [0, 4, 8]]  # seeds and means
    assert {line.get_color() for line in bleu.lines} == {style.LOOKS[norm].colour for norm in ("ln", "rms")}
    assert (bleu.get_ylabel(), loss.get_ylabel()) == ("valid BLEU", "valid loss (nats)")
    figure_4 = paper.curves().query("figure == 'Figure 4'")
    for norm, drawn in zip(("ln", "rms"), published.lines, strict=True):
        curve = figure_4[figure_4["norm"] == norm]
        assert drawn.get_xdata().tolist() == curve["x"].tolist()
        assert drawn.get_ydata().tolist() == curve["y"].tolist()
    assert published.lines[1].get_xdata()[:2].tolist() == [30000, 60000]


def test_init_center_has_intervals_over_three_seeds(tmp_path: Path) -> None:
    for seed, last in enumerate((7, 8, 12)):
        translated(tmp_path, "rms", [0, last], seed=seed)
    (table,) = init_center.analyse(tmp_path).tables
    low, high = stats.ttest_1samp([7, 8, 12], 0).confidence_interval(0.95)
    assert table.values.loc[0, "last_interval"] == pytest.approx((high - low) / 2)
    assert table.values.loc[0, "lowest_interval"] == 0
    assert table.text.loc[0, "last"] == f"9 ± {(high - low) / 2:.2g}"


def test_init_center_shows_only_the_loss_if_there_is_no_bleu(tmp_path: Path) -> None:
    translated(tmp_path, "ln", [None, None])
    finding = init_center.analyse(tmp_path)
    assert finding.tables[0].values["metric"].tolist() == ["loss"]
    loss, _ = only(finding.figures).axes
    assert lines(loss)["LayerNorm"] == [5, 4]


def test_init_center_writes_to_a_folder_per_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translated(tmp_path, "ln", [0, 1])
    assert analysed(monkeypatch, "init_center", tmp_path, "--out", tmp_path / "out") == 0
    folder = tmp_path / "out" / "rnnsearch" / CENTRED
    assert {path.name for path in folder.iterdir()} == {f"init_center.{end}" for end in ("csv", "png", "svg")}
