"""``rmsexp.Recorder``: a training loop of one's own as a run."""

import json
import math
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.records import edit

import rmsexp
from rmsexp import compare
from rmsexp.config import ConfigError
from rmsexp.records.frames import quantities
from rmsexp.records.frames.load import options
from rmsexp.records.record import RunFolder
from rmsexp.report.plots import setting_curves
from rmsexp.report.tables import summary
from rmsexp.system import clock


def test_loss_against_steps_and_training_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    with rmsexp.Recorder("mine", "rms+lr=0.1", 3, results=tmp_path, config={"lr": 0.1}) as recorder:
        for step in (1, 2):
            now[0] += 10
            recorder.log(step, loss=1 / step)
            with recorder.evaluating():
                now[0] += 100
                recorder.log(step, "valid", loss=2 / step)
    records = compare.load(tmp_path)
    run = records.runs.iloc[0]
    assert (run["task"], run["setting"], run["series"], run["seed"]) == ("mine", "own", "rms+lr=0.1", 3)
    assert (run["status"], run["step"]) == ("finished", 2)
    metrics = records.metrics.sort_values(["step", "split"])
    assert list(metrics["split"]) == ["train", "valid"] * 2
    assert list(metrics["loss"]) == [1, 2, 0.5, 1]
    assert list(metrics["time"]) == [10, 10, 20, 20]


def test_how_a_run_ends(tmp_path: Path) -> None:
    def status(norm: str, error: BaseException | None = None, loss: float = 1.0) -> dict[str, object]:
        raised = nullcontext() if error is None else pytest.raises(type(error))
        with raised, rmsexp.Recorder("mine", norm, results=tmp_path) as recorder:
            recorder.log(7, loss=loss)
            recorder.log(8, loss=1.0)
            if error is not None:
                raise error
        content: dict[str, object] = json.loads((tmp_path / f"mine/own/{norm}/seed0/status.json").read_text())
        return content

    assert status("rms")["status"] == "finished"
    assert status("ln", KeyboardInterrupt())["status"] == "interrupted"
    failed, diverged = status("prms", ZeroDivisionError("by 0")), status("bn", loss=math.nan)
    assert (failed["status"], "by 0" in str(failed["error"])) == ("failed", True)
    assert (diverged["status"], "step 7" in str(diverged["error"])) == ("diverged", True)


def test_an_error_that_the_gpu_raises_again_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, path = rmsexp.Recorder("mine", "rms", results=tmp_path), tmp_path / "mine/own/rms/seed0"

    def fail(_: object) -> None:
        raise RuntimeError("device-side assert")

    monkeypatch.setattr("rmsexp.train.recorder.synchronise", fail)
    with pytest.raises(RuntimeError, match="device-side"), recorder:
        recorder.log(5, loss=1.0)
    assert json.loads((path / "status.json").read_text())["status"] == "failed"


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    for force in (False, True):
        with rmsexp.Recorder("mine", "rms", results=tmp_path, force=force) as recorder:
            recorder.log(1, loss=0.0)
        with pytest.raises(ConfigError, match="force"), rmsexp.Recorder("mine", "rms", results=tmp_path):
            pass
    assert {path.name for path in (tmp_path / "mine/own/rms").glob("seed*")} == {"seed0", "seed0.old0"}
    with pytest.raises(ConfigError, match="folder"):
        rmsexp.Recorder("mine/other", "rms", results=tmp_path)


@pytest.mark.parametrize("device", ["mps", "meta", "gpu", "auto", "cuda:x", "cuda:99", "", 0])
def test_a_device_that_is_not_here_is_refused(device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device") as caught:
        rmsexp.Recorder("mine", "rms", results=tmp_path, device=device, force=True)
    assert len(str(caught.value)) < 120


def test_numbers_of_other_libraries_paths_and_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = {"data": Path("x"), "lr": np.float32(0.5), "own": {"p": torch.tensor(2), "why": None}}
    with rmsexp.Recorder("mine", "rms", np.int64(3), results="~/r", config=config) as recorder:  # type: ignore[arg-type]
        recorder.log(np.int64(1), loss=torch.tensor(1.0))  # type: ignore[arg-type]
    run = compare.load("~/r").runs.iloc[0]
    assert (run["status"], run["step"], run["seed"]) == ("finished", 1, 3)
    found = {key: value for key, value in options(run["folder"]).items() if key not in ("task", "norm", "seed")}
    assert found == {"data": "x", "lr": 0.5, "own.p": 2, "own.why": None}


@pytest.mark.parametrize("name", ["seed", "seconds", "seconds_train", "time", "folder"])
def test_a_metric_cannot_have_a_name_that_records_use(name: str, tmp_path: Path) -> None:
    with rmsexp.Recorder("mine", "rms", results=tmp_path) as recorder, pytest.raises(ConfigError, match=name):
        recorder.log(1, **{name: 3.0})


def test_an_accuracy_is_a_fraction_and_a_loss_has_no_unit(tmp_path: Path) -> None:
    with rmsexp.Recorder("mine", "rms", results=tmp_path) as recorder:
        recorder.log(1, "valid", accuracy=0.92, loss=1.0)
        with pytest.raises(ConfigError, match="accuracy is a fraction"):
            recorder.log(2, "valid", accuracy=92.0)
    records = compare.load(tmp_path)
    assert [(one.metric, one.unit) for one in quantities.named(records)] == [("accuracy", "%"), ("loss", "")]
    units = [quantities.unit_of_difference(records, metric) for metric in ("accuracy", "loss")]
    assert units == ["points", ""]


def test_an_epoch_that_is_logged_is_drawn_like_any_value(tmp_path: Path) -> None:
    with rmsexp.Recorder("mine", "rms", results=tmp_path) as recorder:
        for step in (1, 2):
            recorder.log(step, loss=1.0 / step, epoch=step / 2)
    records = compare.load(tmp_path)
    panels = setting_curves.chart(records, quantities.recorded(records)).panels
    assert [list(panel.marks[-1].y) for panel in panels[::2]] == [[1.0, 0.5], [0.5, 1.0]]


def test_a_run_that_was_killed_hides_no_quantity_of_others(tmp_path: Path) -> None:
    for norm in ("ln", "rms"):
        with rmsexp.Recorder("mine", norm, results=tmp_path, target=("valid", "top5 accuracy", "max")) as recorder:
            for step in (0, 1):
                recorder.log(step, "valid", **{"top5 accuracy": 0.6})
    edit(tmp_path / "mine/own/ln/seed0/run.json", lambda content: content.update(quantities=[]))
    records = compare.load(tmp_path)
    assert [one.name for one in quantities.named(records)] == ["valid_top5 accuracy"]
    shown = summary.readable(summary.table(records))
    assert shown["valid top5 accuracy at step 1"].tolist()[0] == "0.6000"  # not in percent, as "accuracy" is


def test_nothing_is_recorded_outside_of_the_with_statement_and_the_lock_is_freed(tmp_path: Path) -> None:
    recorder, folder = rmsexp.Recorder("mine", "rms", results=tmp_path), tmp_path / "mine/own/rms/seed0"
    with pytest.raises(RuntimeError, match="inside"):
        recorder.log(1, loss=1.0)
    with pytest.raises(FileNotFoundError), recorder:
        shutil.rmtree(folder)
    assert not RunFolder(folder).is_locked()
    with pytest.raises(RuntimeError, match="inside"):
        recorder.log(2, loss=1.0)
    assert not folder.exists()


def test_a_recorder_that_is_used_again_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    recorder = rmsexp.Recorder("mine", "rms", results=tmp_path, force=True, config={"norm": "other", "lr": 0.1})
    with recorder:
        now[0] += 10
        recorder.log(100, loss=math.nan)
    assert not compare.load(tmp_path).problems
    with recorder:
        now[0] += 1
        recorder.log(1, loss=2.0)
    records = compare.load(tmp_path)
    (run,) = records.runs.to_dict("records")
    assert (run["status"], run["step"], records.metrics["time"].tolist()) == ("finished", 1, [1.0])
    assert options(Path(run["folder"]))["norm"] == "rms"
