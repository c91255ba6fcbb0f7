"""TensorBoard and W&B: the files that they write contain the rows of the record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.records import make_row
from helpers.tensors import digest

from rmsexp import config, record, runner
from rmsexp.train import loggers

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def wandb_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path_factory.getbasetemp() / "wandb-home"))


@pytest.fixture(scope="module")
def runs(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Do the same tiny run with each choice of loggers; return the run's folder by choice."""
    folders = {}
    threads = torch.get_num_threads()
    for choice in ("none", "tensorboard", "[wandb,tensorboard]"):
        options = [f"logger={choice}"] if choice != "none" else []
        job = tiny(data_root, tmp_path_factory.mktemp("results"), *options)
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
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    names = accumulator.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in accumulator.Scalars(name)] for name in names}


def expected_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    expected: dict[str, list[tuple[int, float]]] = {}
    for row in record.RunFolder(folder).read_metrics()[0]:
        values = {key: row[key] for key in row if key not in ("step", "split", "seconds")}
        for key, value in (values | {"time": row["seconds"]["data"] + row["seconds"]["train"]}).items():
            expected.setdefault(f"{row['split']}/{key}", []).append((row["step"], pytest.approx(value, rel=1e-6)))
    return expected


@pytest.mark.parametrize("choice", ["tensorboard", "[wandb,tensorboard]"])
def test_tensorboard_has_the_values_of_the_record(runs: dict[str, Path], choice: str) -> None:
    logged, expected = events(runs[choice]), expected_events(runs[choice])
    assert {"train/loss", "train/lr", "train/grad_norm", "test/error", "test/time"} <= expected.keys()
    assert logged == expected
    assert [step for step, _ in logged["test/error"]] == [0, 2, 4]


def wandb_records(folder: Path) -> Iterator[object]:
    """Yield the records of an offline run. Its file has a header of 7 bytes and LevelDB's blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    (path,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
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


def test_wandb_offline_has_the_values_of_the_record(runs: dict[str, Path]) -> None:
    folder, history, summary, logged_config, exits = runs["[wandb,tensorboard]"], [], {}, {}, []
    for entry in wandb_records(folder):
        if entry.HasField("history"):
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in entry.history.item}
            logged = {key: value for key, value in items.items() if not key.startswith("_")}
            history.append((entry.history.step.num, logged))
        elif entry.HasField("summary"):
            summary |= {item.key: json.loads(item.value_json) for item in entry.summary.update}
        elif entry.HasField("run"):
            logged_config |= {item.key: json.loads(item.value_json) for item in entry.run.config.update}
            identity = (entry.run.run_id, entry.run.project)
        elif entry.HasField("exit"):
            exits.append(entry.exit.exit_code)
    rows = record.RunFolder(folder).read_metrics()[0]
    by_step: dict[int, dict[str, float]] = {}
    for row in rows:  # W&B merges the rows of one step
        by_step[row["step"]] = by_step.get(row["step"], {}) | loggers.scalars(row)
    assert history == list(by_step.items())
    assert sum("test/error" in logged for _, logged in history) == 3
    assert sum("train/loss" in logged for _, logged in history) == 4
    assert summary["status"] == "finished"
    assert exits == [0]
    assert identity == ("cifar10-demo-batch_size-8-model.width-0.05-rms-seed0", "rmsexp")
    assert (logged_config["task"], logged_config["batch_size"]) == ("cifar10", 8)


@pytest.mark.parametrize("choice", ["tensorboard", "[wandb,tensorboard]"])
def test_loggers_do_not_change_results(runs: dict[str, Path], choice: str) -> None:
    def results(folder: Path) -> tuple[str, list[record.Row]]:
        saved = torch.load(folder / record.CHECKPOINTS / "last.pt", weights_only=True)
        states = [saved["optimizer"]["state"][k][part] for k in saved["optimizer"]["state"] for part in ("m", "v")]
        rows = record.RunFolder(folder).read_metrics()[0]
        return digest(*saved["model"].values(), *states), [row | {"seconds": None} for row in rows]

    assert results(runs[choice]) == results(runs["none"])
    assert not any((runs["none"] / name).exists() for name in ("wandb", "tensorboard"))
    assert runs[choice].parts[-4:] == runs["none"].parts[-4:]  # the loggers are not part of the folder's name


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+logger.tensorboard.colour=blue", "logger.tensorboard.colour is not known"),
        ("+logger.wandb.projekt=x", "logger.wandb.projekt is not known; did you mean logger.wandb.project?"),
        ("+logger.wandb.api_key=secret", "logger.wandb.api_key is not known"),
        ("logger.wandb.mode=ofline", "logger.wandb.mode=ofline is not known; did you mean offline?"),
        ("+logger.mlflow.x=1", "logger.mlflow is not known"),
    ],
)
def test_unknown_loggers_and_options_are_refused(data_root: Path, tmp_path: Path, override: str, message: str) -> None:
    """They are refused before the run begins, so that no file contains a secret such as a key of W&B."""
    with pytest.raises(config.ConfigError) as error:
        tiny(data_root, tmp_path, "logger=[wandb,tensorboard]", override)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("resumed", [0, 3])
def test_a_continued_run_replaces_tensorboard_s_values_after_its_checkpoint(tmp_path: Path, resumed: int) -> None:
    killed = loggers.TensorBoardLogger(tmp_path, {}, 0)
    for step in range(6):
        killed.log(make_row(step, 1.0))
    killed.close("failed")
    after = loggers.TensorBoardLogger(tmp_path, {}, resumed)
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
