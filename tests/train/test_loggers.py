"""TensorBoard and W&B: the files that they write contain the rows of the record."""

import sys
from collections.abc import Iterator, Mapping
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
from rmsexp.commands import result
from rmsexp.records import record
from rmsexp.train import loggers
from rmsexp.work import runner

pytestmark = pytest.mark.slow


class WandbRun:
    """What W&B gets of one process. Like W&B, it drops values of steps before its own."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.step = 0
        self.options, self.axes, self.exit_code = options, list[tuple[str | None, ...]](), None
        self.history: dict[int, dict[str, float]] = {}
        self.summary: dict[str, str] = {}

    def define_metric(self, name: str, step_metric: str | None = None, step_sync: bool = True, **more: str) -> None:  # noqa: ARG002
        self.axes.append((name, step_metric, *more.values()))

    def log(self, values: dict[str, float], step: int) -> None:
        if step >= self.step:
            self.step = step
            self.history.setdefault(step, {}).update(values)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


@pytest.fixture(scope="module")
def wandb() -> Iterator[list[WandbRun]]:
    """Replace the package ``wandb``; return what each process gives to it."""
    processes: list[WandbRun] = []

    def init(**options: Any) -> WandbRun:
        processes.append(WandbRun(options))
        return processes[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=dict))
        yield processes


@pytest.fixture(scope="module")
def runs(data_root: Path, tmp_path_factory: pytest.TempPathFactory, wandb: list[WandbRun]) -> dict[str, Path]:
    """Do the same tiny run with each choice of loggers; return the run's folder by choice."""
    folders = {}
    threads = torch.get_num_threads()
    for choice in ("none", "[wandb,tensorboard]"):
        own = [f"logger={choice}", "logger.wandb.entity=team", "logger.wandb.tags=[mine]"]
        options = own if choice != "none" else []
        job = tiny(data_root, tmp_path_factory.mktemp("results"), *options)
        with pytest.MonkeyPatch.context() as patch:
            evaluate_few_images(patch)
            outcome = runner.execute(job)
        assert (outcome.status, outcome.error) == ("finished", None)
        folders[choice] = job.folder
    assert len(wandb) == 1
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


def test_wandb_has_the_values_of_the_record(runs: dict[str, Path], wandb: list[WandbRun]) -> None:
    """The steps are those of the run, and each row has the time in training, which is the default axis."""
    rows = record.RunFolder(runs["[wandb,tensorboard]"]).read_metrics()[0]
    by_step: dict[int, dict[str, float]] = {}
    for row in rows:  # W&B merges the rows of one step
        time = row["seconds"]["data"] + row["seconds"]["train"]
        by_step[row["step"]] = by_step.get(row["step"], {}) | loggers.scalars(row) | {"time": time}
    logged = wandb[0]
    assert logged.history == by_step
    assert list(by_step) == [0, 1, 2, 3, 4]
    assert (logged.summary["status"], logged.exit_code) == ("finished", 0)
    assert logged.axes == [("time", None), ("*", "time"), ("test/error", "time", "min")]


def test_wandb_names_the_run_its_group_and_tags(runs: dict[str, Path], wandb: list[WandbRun]) -> None:
    options = wandb[0].options
    assert options["dir"] == str(runs["[wandb,tensorboard]"])
    assert options["project"] == "rmsexp"
    assert options["name"] == "cifar10-demo+batch_size=8+model.width=0.05-rms-seed0"
    assert options["group"] == "cifar10/demo+batch_size=8+model.width=0.05"
    assert options["tags"] == ["cifar10", "demo", "rms", "eager", "mine"]
    assert (options["entity"], options["notes"]) == ("team", None)
    setting = ("cifar10", "demo+batch_size=8+model.width=0.05", "rms", 8)
    assert tuple(options["config"][key] for key in ("task", "setting", "series", "batch_size")) == setting


def test_a_continued_run_keeps_its_id_and_one_begun_anew_gets_another(tmp_path: Path, wandb: list[WandbRun]) -> None:
    for step in (0, 3, 0):
        loggers.WandbLogger(*logged_run(tmp_path, step), mode="online", project="x", tags=[])
    first, again, anew = (process.options["id"] for process in wandb[-3:])
    assert first == again != anew


@pytest.mark.minutes
def test_wandb_takes_what_it_gets(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    for steps in (2, 4):
        job = tiny(data_root, tmp_path, "logger=wandb", f"max_steps={steps}")
        assert runner.execute(job).status == "finished"
    assert len(list(job.folder.glob("wandb/offline-run-*"))) == 2
    assert not result.read(job.folder).run.get("failures")


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


def logged_run(folder: Path, step: int) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Return folder, config and facts of a run that begins or continues at a step."""
    facts = dict.fromkeys(("task", "scale", "norm", "impl", "setting", "series", "seed"), "x")
    session = {"started": "2026-11-23T00:00:00+00:00", "from_step": step}
    return (
        folder,
        {},
        facts | {"sessions": [session], "target": {"selection": "valid", "metric": "loss", "mode": "min"}},
    )


@pytest.mark.parametrize("resumed", [0, 3])
def test_a_continued_run_replaces_tensorboard_s_values_after_its_checkpoint(tmp_path: Path, resumed: int) -> None:
    killed = loggers.TensorBoardLogger(*logged_run(tmp_path, 0))
    for step in range(6):
        killed.log(make_row(step, 1.0))
    killed.close("failed")
    after = loggers.TensorBoardLogger(*logged_run(tmp_path, resumed))
    for step in range(resumed + 1, 5):
        after.log(make_row(step, 2.0))
    after.close("finished")
    before = [(step, 1.0) for step in range(resumed + 1)] if resumed else []
    assert events(tmp_path)["train/loss"] == [*before, *((step, 2.0) for step in range(resumed + 1, 5))]


def test_scalars_omit_values_that_are_not_finite() -> None:
    assert loggers.scalars(make_row(3, None, "test")) == {"test/time": 6.0}
