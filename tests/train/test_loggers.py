"""TensorBoard and W&B: the files that they write contain the rows of the record."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.records import make_row
from helpers.stopping import evaluate_few_images
from helpers.tensors import digest

from rmsexp import config
from rmsexp.records import record
from rmsexp.train import loggers
from rmsexp.work import runner

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def wandb_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            patch.setenv(name, str(tmp_path_factory.getbasetemp() / "wandb-home"))
        yield


@pytest.fixture(scope="module")
def runs(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Do the same tiny run with each choice of loggers; return the run's folder by choice."""
    folders = {}
    threads = torch.get_num_threads()
    for choice in ("none", "[wandb,tensorboard]"):
        options = [f"logger={choice}"] if choice != "none" else []
        job = tiny(data_root, tmp_path_factory.mktemp("results"), *options)
        with pytest.MonkeyPatch.context() as patch:
            evaluate_few_images(patch)
            outcome = runner.execute(job)
        assert (outcome.status, outcome.error) == ("finished", None)
        folders[choice] = job.folder
    torch.set_num_threads(threads)
    return folders


def tiny(data_root: Path, results: Path, *overrides: str) -> config.Job:
    options = [f"data.root={data_root}", f"results={results}", "threads=1", "device=cpu", "model.width=0.05"]
    intervals = ["max_steps=4", "log_every=1", "eval_every=2", "checkpoint_every=2"]
    return config.job([*options, "batch_size=8", *intervals, *overrides])


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return (step, value) pairs by name, as TensorBoard reads them from a run's event files."""
    logged = accumulated(folder)
    names = logged.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in logged.Scalars(name)] for name in names}


def accumulated(folder: Path) -> Any:
    """Return a run's event files as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    return accumulator.Reload()


def expected_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    expected: dict[str, list[tuple[int, float]]] = {}
    for row in record.RunFolder(folder).read_metrics()[0]:
        values = {key: row[key] for key in row if key not in ("step", "split", "seconds")}
        for key, value in (values | {"time": row["seconds"]["data"] + row["seconds"]["train"]}).items():
            expected.setdefault(f"{row['split']}/{key}", []).append((row["step"], pytest.approx(value, rel=1e-6)))
    return expected


def test_tensorboard_has_the_values_of_the_record(runs: dict[str, Path]) -> None:
    logged, expected = (of(runs["[wandb,tensorboard]"]) for of in (events, expected_events))
    assert {"train/loss", "train/lr", "train/grad_norm", "test/error", "test/time"} <= expected.keys()
    assert logged == expected
    assert [step for step, _ in logged["test/error"]] == [0, 2, 4]


def test_tensorboard_draws_values_against_time_in_training(runs: dict[str, Path]) -> None:
    """Its axes "wall" and "relative" show the beginning of the run plus the time in training."""
    folder = runs["[wandb,tensorboard]"]
    began = datetime.fromisoformat(record.RunFolder(folder).read_run()["sessions"][0]["started"]).timestamp()
    logged = accumulated(folder)
    names = [name for name in logged.Tags()["scalars"] if not name.endswith("/time")]
    assert "test/error" in names
    for name in names:
        seconds = [event.value for event in logged.Scalars(f"{name.partition('/')[0]}/time")]
        assert [event.wall_time - began for event in logged.Scalars(name)] == pytest.approx(seconds, abs=1e-3)


def test_tensorboard_has_hyperparameters_without_the_seed(runs: dict[str, Path]) -> None:
    from tensorboard.plugins.hparams import metadata

    content = (
        accumulated(runs["[wandb,tensorboard]"]).SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    )
    start = metadata.parse_session_start_info_plugin_data(content)
    values = {key: getattr(value, value.WhichOneof("kind")) for key, value in start.hparams.items()}
    expected = {"task": "cifar10", "scale": "demo", "series": "rms", "norm._target_": "rmsexp.norms.RMS"}
    assert values.items() >= (expected | {"batch_size": 8.0, "model.width": 0.05, "norm.axes": "[2, 3]"}).items()
    assert not values.keys() & {"seed", "results", "threads", "max_steps"}  # seeds are one group, whose mean is shown


def wandb_records(process: Path) -> Iterator[object]:
    """Yield the records of a process of an offline run. Its file has a header of 7 bytes and LevelDB's blocks."""
    from wandb.proto import wandb_internal_pb2

    (path,) = process.glob("run-*.wandb")
    content, position, parts = path.read_bytes(), 7, b""
    assert content.startswith(b":W&B")
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            entry = wandb_internal_pb2.Record()
            entry.ParseFromString(parts)
            yield entry
            parts = b""


class WandbRun:
    """What Weights & Biases stored of one process: ``run``, ``config``, ``summary``, ``exits``, ``metrics``, and the
    rows of ``history`` with their steps."""

    def __init__(self, process: Path) -> None:
        self.history, self.summary, self.config, self.exits, self.metrics = [], {}, {}, [], []
        for entry in wandb_records(process):
            if entry.HasField("history"):
                items = {item.key or "/".join(item.nested_key): item.value_json for item in entry.history.item}
                values = {key: json.loads(value) for key, value in items.items() if not key.startswith("_")}
                self.history.append((entry.history.step.num, values))
            elif entry.HasField("summary"):
                self.summary |= {item.key: json.loads(item.value_json) for item in entry.summary.update}
            elif entry.HasField("run"):
                self.run = entry.run
                self.config |= {item.key: json.loads(item.value_json) for item in entry.run.config.update}
            elif entry.HasField("metric"):
                self.metrics.append(entry.metric)
            elif entry.HasField("exit"):
                self.exits.append(entry.exit.exit_code)


def wandb_runs(folder: Path) -> list[WandbRun]:
    """Return what Weights & Biases stored of each process of an offline run, in the order of their steps."""
    found = [WandbRun(process) for process in folder.glob("wandb/offline-run-*")]
    return sorted(found, key=lambda process: process.history[0][0])


def test_wandb_offline_has_the_values_of_the_record(runs: dict[str, Path]) -> None:
    (logged,) = wandb_runs(runs["[wandb,tensorboard]"])
    rows = record.RunFolder(runs["[wandb,tensorboard]"]).read_metrics()[0]
    by_step: dict[int, dict[str, float]] = {}
    for row in rows:  # W&B merges the rows of one step
        time = row["seconds"]["data"] + row["seconds"]["train"]
        by_step[row["step"]] = by_step.get(row["step"], {}) | loggers.scalars(row) | {"time": time}
    assert logged.history == list(by_step.items())
    assert sum("test/error" in values for _, values in logged.history) == 3
    assert sum("train/loss" in values for _, values in logged.history) == 4
    assert (logged.summary["status"], logged.exits) == ("finished", [0])


def test_wandb_can_draw_every_value_against_time_in_training(runs: dict[str, Path]) -> None:
    """The steps are those of the run, and each row has the time, which is the default axis."""
    (logged,) = wandb_runs(runs["[wandb,tensorboard]"])
    assert all(values["time"] == values.get("train/time", values["time"]) for _, values in logged.history)
    assert [step for step, _ in logged.history] == [0, 1, 2, 3, 4]
    defined = [(metric.name or metric.glob_name, metric.step_metric) for metric in logged.metrics]
    assert defined == [("time", ""), ("*", "time")]


def test_wandb_names_the_run_its_group_and_tags(runs: dict[str, Path]) -> None:
    (logged,) = wandb_runs(runs["[wandb,tensorboard]"])
    assert logged.run.project == "rmsexp"
    assert logged.run.display_name == "cifar10-demo+batch_size=8+model.width=0.05-rms-seed0"
    assert logged.run.run_group == "cifar10/demo+batch_size=8+model.width=0.05"
    assert list(logged.run.tags) == ["cifar10", "demo", "rms", "eager"]
    assert logged.config["setting"] == "demo+batch_size=8+model.width=0.05"
    assert [logged.config[key] for key in ("task", "series", "batch_size")] == ["cifar10", "rms", 8]


def test_a_continued_run_keeps_its_id_and_one_begun_anew_gets_another(data_root: Path, tmp_path: Path) -> None:
    for options in (["max_steps=2"], [], ["force=true"]):
        job = tiny(data_root, tmp_path, "logger=wandb", *options)
        assert runner.execute(job).status == "finished"
    earlier = wandb_runs(job.folder.with_name("seed0.old0"))
    (anew,) = wandb_runs(job.folder)
    assert [[step for step, _ in process.history] for process in earlier] == [[0, 1, 2], [3, 4]]
    assert earlier[0].run.run_id == earlier[1].run.run_id != anew.run.run_id


def test_loggers_do_not_change_results(runs: dict[str, Path]) -> None:
    def results(folder: Path) -> tuple[str, list[record.Row]]:
        saved = torch.load(folder / record.CHECKPOINTS / "last.pt", weights_only=True)
        states = [saved["optimizer"]["state"][k][part] for k in saved["optimizer"]["state"] for part in ("m", "v")]
        rows = record.RunFolder(folder).read_metrics()[0]
        return digest(*saved["model"].values(), *states), [row | {"seconds": None} for row in rows]

    logged, plain = runs["[wandb,tensorboard]"], runs["none"]
    assert results(logged) == results(plain)
    assert not any((plain / name).exists() for name in ("wandb", "tensorboard"))
    assert logged.parts[-4:] == plain.parts[-4:]  # the loggers are not part of the folder's name


def logged_run(folder: Path, step: int) -> loggers.Run:
    """Return a run that begins or continues at a step, for loggers."""
    facts = dict.fromkeys(("task", "scale", "setting", "series"), "x") | {"quantities": []}
    return loggers.Run(folder, {}, facts | {"sessions": [{"started": "2026-11-23T00:00:00+00:00"}]}, step)


def test_wandb_takes_the_evaluation_in_which_a_run_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run was stopped in its evaluation at step 8, whose training row had been logged, so that W&B is at step 9."""

    class Resumed:
        """A run of W&B, which drops values of steps before its own."""

        starting_step = step = 9

        def __init__(self) -> None:
            self.history: list[tuple[int, str]] = []

        def define_metric(self, *_: object, **__: object) -> None: ...

        def log(self, values: dict[str, float], step: int) -> None:
            if step >= self.step:
                self.history += [(step, name) for name in values if name.endswith("loss")]
                self.step = step

    resumed = Resumed()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: resumed, Settings=dict))
    run = logged_run(tmp_path, 8)
    facts = dict.fromkeys(("norm", "impl", "seed"), "x") | dict(run.facts)
    logger = loggers.WandbLogger(dataclasses.replace(run, facts=facts), "online", "x")
    for step, split in ((8, "valid"), (8, "test"), (10, "train")):
        logger.log(make_row(step, 1.0, split))
    assert resumed.history == [(9, "valid/loss"), (9, "test/loss"), (10, "train/loss")]


@pytest.mark.parametrize("resumed", [0, 3])
def test_a_continued_run_replaces_tensorboard_s_values_after_its_checkpoint(tmp_path: Path, resumed: int) -> None:
    killed = loggers.TensorBoardLogger(logged_run(tmp_path, 0))
    for step in range(6):
        killed.log(make_row(step, 1.0))
    killed.close("failed")
    after = loggers.TensorBoardLogger(logged_run(tmp_path, resumed))
    for step in range(resumed + 1, 5):
        after.log(make_row(step, 2.0))
    after.close("finished")
    before = [(step, 1.0) for step in range(resumed + 1)] if resumed else []
    assert events(tmp_path)["train/loss"] == [*before, *((step, 2.0) for step in range(resumed + 1, 5))]


def test_a_continued_run_extends_its_curves(data_root: Path, tmp_path: Path) -> None:
    for steps in (2, 4):
        outcome = runner.execute(tiny(data_root, tmp_path, "logger=tensorboard", f"max_steps={steps}"))
        assert outcome.status == "finished"
    (folder,) = record.find_runs(tmp_path)
    assert events(folder) == expected_events(folder)
    assert [step for step, _ in events(folder)["train/loss"]] == [1, 2, 3, 4]


def test_scalars_omit_values_that_are_not_finite() -> None:
    assert loggers.scalars(make_row(3, None, "test")) == {"test/time": 6.0}
    assert loggers.scalars(make_row(3, 0.5)) == {"train/loss": 0.5, "train/time": 6.0}
