"""The command line from end to end: runs, sweeps, and the messages about mistakes and failures."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import errno
import hashlib
import json
import os
import pickle
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
import yaml
from helpers.tasks import Ended
from torchvision.datasets import CIFAR10

import rmsexp
from rmsexp import app, compare, config, cores, earlier, outcomes, prepare, record, runner, usage
from rmsexp import words as words_module
from rmsexp.data import DataError
from rmsexp.tasks.cifar10 import Task
from rmsexp.train import checkpoint
from rmsexp.train.contention import Contention
from rmsexp.train.task import Extent

TINY = (
    *("max_steps=4", "log_every=2", "eval_every=2", "checkpoint_every=2"),
    *("model.width=0.02", "batch_size=8", "threads=1"),
)
SETTING = "demo+batch_size=8+model.width=0.02"


class Bench:
    """Runs command lines in this process, with their results in ``results``. Figures are drawn only with ``curves``."""

    def __init__(
        self, root: Path, data_root: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.results, self._data_root, self._capsys, self._patch = root / "all results", data_root, capsys, patch

    def __call__(self, *words: str, curves: bool = False) -> Ended:
        with contextlib.ExitStack() as stack:
            if not curves:
                patch = stack.enter_context(self._patch.context())
                patch.setattr(outcomes, "draw", lambda _: None)
            try:
                status = app.main([f"results={self.results}", f"data.root={self._data_root}", *TINY, *words])
            except SystemExit as end:
                status = int(end.code or 0)
        return Ended(status, *self._capsys.readouterr())

    def folder(self, series: str = "rms", seed: int = 0) -> Path:
        return self.results / "cifar10" / SETTING / series / f"seed{seed}"

    def status(self, series: str = "rms", seed: int = 0) -> dict[str, Any]:
        status = record.RunFolder(self.folder(series, seed)).read_status()
        return {key: status[key] for key in ("status", "step", "error")}

    def rows(self, series: str = "rms", seed: int = 0) -> list[record.Row]:
        """Return the rows of the metrics without their times, which differ if a run is interrupted."""
        rows, problem = record.RunFolder(self.folder(series, seed)).read_metrics()
        assert problem is None
        return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]

    def edit(self, file: str, change: Callable[[dict[str, Any]], None]) -> None:
        path = self.folder() / file
        content = yaml.safe_load(path.read_text())
        change(content)
        path.write_text(json.dumps(content) if file.endswith("json") else yaml.safe_dump(content))


@pytest.fixture
def bench(
    tmp_path: Path, data_root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Bench:
    monkeypatch.setattr(sys, "argv", ["rmsexp"])  # app sets sys.argv for Hydra; this restores it after the test
    return Bench(tmp_path, data_root, capsys, monkeypatch)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data_root: Path) -> Path:
    """Return the folder of a run of eight steps that was not interrupted."""
    results = tmp_path_factory.mktemp("undisturbed")
    rmsexp.run(overrides=[f"results={results}", f"data.root={data_root}", *TINY, "max_steps=8"])
    return config.job([f"results={results}", *TINY]).folder


def assert_same_end(bench: Bench, undisturbed: Path) -> None:
    """Check that the bench's run has ended bit-identical to the undisturbed run."""
    expected = [
        {key: value for key, value in row.items() if key != "seconds"}
        for row in record.RunFolder(undisturbed).read_metrics()[0]
    ]
    assert bench.rows() == expected
    payload, expected_payload = (
        torch.load(folder / record.CHECKPOINTS / "last.pt", weights_only=True)
        for folder in (bench.folder(), undisturbed)
    )
    for state in (payload["state"], expected_payload["state"]):
        del state["metrics_bytes"], state["metrics_digest"]  # depend on the seconds
    assert payload["state"] == expected_payload["state"]
    for part in ("model", "optimizer"):
        torch.testing.assert_close(payload[part], expected_payload[part], rtol=0, atol=0)


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], object]) -> None:
    """Call ``action`` whenever the batches of ``step`` are fetched."""
    fetch = Task.batches

    def batches(self: Task, k: int) -> Any:
        if k == step:
            action()
        return fetch(self, k)

    monkeypatch.setattr(Task, "batches", batches)


def not_finite_at(monkeypatch: pytest.MonkeyPatch, step: int, norm: str | None = None) -> None:
    """Make the objective of one step NaN: in the runs of ``norm``, or in all runs."""
    current: dict[str, Any] = {}
    fetch, compute, build = Task.batches, Task.objective, Task.build

    def build_and_note(self: Task, run_norm: Any) -> Any:
        current["norm"] = run_norm.name
        return build(self, run_norm)

    def batches(self: Task, k: int) -> Any:
        current["step"] = k
        return fetch(self, k)

    def objective(self: Task, *args: Any) -> Any:
        result = compute(self, *args)
        spoilt = current["step"] == step and norm in (None, current["norm"])
        return dataclasses.replace(result, loss=result.loss * float("nan")) if spoilt else result

    for name, method in (("build", build_and_note), ("batches", batches), ("objective", objective)):
        monkeypatch.setattr(Task, name, method)


# --- help


def test_help_lists_groups_choices_keys_and_examples_without_slow_imports() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "rmsexp", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    for group in config.GROUPS:
        assert f"\n  {group}: " in done.stdout
    for group in ("task", "norm", "scale", "logger", "sweep"):
        assert all(f"\n    {name} " in done.stdout for name in config.options(group))
    assert all(key in done.stdout for key, _ in usage.KEYS)
    assert done.stdout.split("examples:")[1].count("python -m rmsexp") == len(usage.EXAMPLES) == 6
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "rmsexp.config" in imported
    assert not imported & {"torch", "torchvision", "pandas", "matplotlib", "numpy"}


def test_every_example_is_a_valid_command() -> None:
    for command, _ in usage.EXAMPLES:
        words = [config.expand_home(word) for word in command.removeprefix("python -m rmsexp").split()]
        runs, sweep = words_module.expand([word for word in words if word != "-m"], "-m" in words, None)
        assert (sweep is not None) == ("-m" in words)
        assert all(config.job(run) for run in runs)


def test_hydra_prints_the_config(bench: Bench) -> None:
    done = bench("--cfg", "job", "norm=ln")
    assert done.status == 0
    printed = yaml.safe_load(done.out)
    assert (printed["norm"]["name"], printed["max_steps"], printed["scale"]) == ("ln", 4, "demo")
    assert not bench.results.exists()


# --- mistakes on the command line


def config_dir(root: Path) -> Path:
    """Return a folder of norm configs, each with a mistake."""
    (root / "norm").mkdir()
    files = {
        "missing": "_target_: nowhere.Missing\nname: missing\nimpl: eager\n",
        "no_norm": "_target_: collections.OrderedDict\nname: no_norm\nimpl: eager\n",
        "no_class": "name: no_class\n",
        "a_list": "- 1\n",
        "broken": "name: [x\n",
    }
    for name, content in files.items():
        (root / f"norm/{name}.yaml").write_text(content)
    return root


OUTSIDE = ("--config-dir", "DIR")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["norm=rmss"], "norm=rmss is not known; did you mean rms? (one of bn, derf, dyt, l2, ln, mean_only_bn,"),
        (
            ["task=foo"],
            "task=foo is not known (one of attentive_reader, cifar10, language_model, order_embedding, rnnsearch,",
        ),
        (["scale=huge"], "scale=huge is not known (one of demo, large, medium, paper, small)"),
        (["-m", "norm=rms,rmss"], "norm=rmss is not known; did you mean rms?"),
        (["norm=layernorme"], "norm=layernorme is not known; did you mean layernorm?"),
        (["norm=null"], "norm takes one of bn, derf,"),
        (["norm=[rms,ln]"], "norm takes one of bn, derf,"),
        (["norm=prms", "norm.p=0"], "norm.p must lie in (0, 1], got 0.0"),
        (["norm=prms", "norm.p=1.5"], "norm.p must lie in (0, 1], got 1.5"),
        (["norm.p=0.5"], "norm=rms has no option norm.p (norms that have it: prms)"),
        (["norm.epps=1"], "norm.epps is not known; did you mean norm.eps? (norm=rms has norm.name, norm.impl,"),
        (["norm=bn", "norm.impl=fused"], "norm.impl=fused is not known (one of"),
        (["norm.name=mine"], "norm.name cannot be set; choose another norm with norm="),
        (["optim.lr=abc"], "optim.lr: Value 'abc' of type 'str' could not be converted to Float"),
        (["optim.lr=-1"], "optim.lr must be a finite number greater than 0, got -1.0"),
        (["optim=3"], "optim is a group of keys; set a single key (optim.lr, optim.beta2, optim.eps,"),
        (["~optim.lr"], "~optim.lr: a value can be set, but not removed"),
        (["seed=0.5"], "seed: Value '0.5' of type 'float' could not be converted to Integer"),
        (["lr=0.1"], "lr is not known; did you mean optim.lr?"),
        (["sede=1"], "sede is not known; did you mean seed?"),
        (["-m", "hydra/launcher=slurmy"], "hydra/launcher=slurmy is not known; did you mean slurm? (one of joblib,"),
        (["-m", "hydra/launcher=slurm", "sede=1"], "sede is not known; did you mean seed?"),
        (["+sede=1"], "sede is not known; did you mean seed?"),
        (["++model.widht=1"], "model.widht is not known; did you mean model.width?"),
        (["data.root="], "data.root must not be empty"),
        (["max_steps=0"], "max_steps must be at least 1, got 0"),
        (["device=tpu"], "device=tpu is not known"),
        (["model.width=0.001"], "model.width=0.001 leaves no channel; it must be more than 0.0052"),
        (["norm=rms,ln"], "norm=rms,ln names several runs: add -m for a sweep"),
        (["-m", "norm=glob(*)"], "norm=glob(*): write the values with commas between them"),
        (["rms"], "'rms' is no GROUP=CHOICE and no KEY=VALUE ("),
        (["a=b=c"], "'a=b=c' is no GROUP=CHOICE and no KEY=VALUE ("),
        (["--config-dir", "nowhere"], "--config-dir nowhere is not a folder"),
        (["--config-dir", ""], "--config-dir  is not a folder"),
        (["-cn", "x"], "--config-name is not supported; --config-dir DIR adds a folder of configs"),
        (["--config-path", "/x"], "--config-path is not supported; --config-dir DIR adds a folder of configs"),
        (["--experimental-rerun", "x"], "--experimental-rerun is not supported"),
        (["-p", "norm"], "--package and --resolve have an effect together with --cfg only"),
        (["-m", "--resolve"], "--package and --resolve have an effect together with --cfg only"),
        (["-m", "-c", "job"], "-m does not go with --run, --cfg and --info, which are about one run"),
        (["--cfg"], "argument -c/--cfg: expected one argument"),
        (["--cfg", "job", "norm=rmss"], "norm=rmss is not known; did you mean rms?"),
        (["--cfg", "job", "sede=1"], "sede is not known; did you mean seed?"),
        (
            ["--shell-completion"],
            "Hydra refuses its own options and keys, hydra.… (ValueError: Expecting one subcommand",
        ),
        (["--nothing"], "unrecognized arguments: --nothing"),
        (["seed=" + "9" * 100_000], "is too long (at most 4000 characters and 20 levels of brackets)"),
        (["-m", "seed=range(0,0)"], "seed=range(0,0) has no values"),
        (["-m", "seed=range(0,3,0)"], "seed=range(0,3,0): write the values with commas between them"),
        (["-m", "seed=range(0,1000000000)"], "seed=range(0,1000000000) has too many values"),
        (["-m", "seed=range(0,9000)", "norm=ln,rms"], "these are 18000 runs; a sweep has at most 10000"),
        (["-m", "hydra.job.chdir=true"], "hydra.job.chdir=true would change the folder"),
        (["-m", "hydra.sweeper.params.seed=1"], "Unexpected type for root: NoneType"),
        (["-m", "hydra.mode=RUN"], "hydra.mode=RUN has no effect: -m makes a sweep"),
        (["hydra.run.dir=x"], "hydra.run.dir=x has no effect: results=DIR sets the folder of results"),
        (["--norm", "rms"], "a value of the config has no dashes: write norm=rms"),
        (["--max_steps=20"], "a value of the config has no dashes: write max_steps=20"),
        (["hydra.verbose=true"], "hydra.verbose=true has an effect in sweeps only: python -m rmsexp -m"),
        (["+logger.wandb.api_key=secret"], "logger.wandb.api_key is not known"),
        (["model.init=???"], "model.init has no value"),
        (
            [*OUTSIDE, "norm=missing"],
            "norm=missing: _target_ nowhere.Missing cannot be imported (No module named 'nowhere')",
        ),
        (
            [*OUTSIDE, "norm=no_norm"],
            "_target_ collections.OrderedDict is not a dataclass derived from rmsexp.norms.Norm",
        ),
        ([*OUTSIDE, "norm=no_class"], "the norm's file names no class"),
        ([*OUTSIDE, "norm=a_list"], "the norm's file names no class"),
        ([*OUTSIDE, "norm=broken"], "norm/broken.yaml"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value)[:40],
)
def test_a_mistake_is_reported_in_one_line(words: list[str], message: str, bench: Bench, tmp_path: Path) -> None:
    outside = str(config_dir(tmp_path))
    done = bench(*(outside if word == "DIR" else word for word in words))
    done.assert_refused(message)
    assert not bench.results.exists()


@pytest.mark.parametrize("word", ["hydra.sweeper.max_batch_size=0", "hydra.launcher.n_jobs=0"])
def test_a_value_that_hydra_cannot_use_is_reported_in_one_line(word: str, bench: Bench) -> None:
    launcher = ["hydra/launcher=joblib"] if "launcher" in word else []
    bench("-m", *launcher, word, "norm=rms,ln").assert_refused("Hydra refuses its own options and keys, hydra.… (")
    assert not list(record.find_runs(bench.results))


@pytest.mark.parametrize("words", [("--help",), ("--hel",), ("norm=ln", "-h"), ("-m", "--help", "seed=0,1")])
def test_help_may_be_abbreviated_and_stand_anywhere(words: Sequence[str], bench: Bench) -> None:
    done = bench(*words)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(usage.help_text())
    assert not bench.results.exists()


def test_flags_may_stand_anywhere(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    monkeypatch.setattr("rmsexp.runner.execute", lambda job, _: order.append(job.series) or runner.Outcome("failed", 0))
    bench("norm=rms,ln", "-m", "seed=0")
    assert order == ["rms", "ln"]
    assert bench("norm=ln", "--cfg", "job", "seed=0").status == 0


def test_a_folder_of_results_in_the_config_folder_is_refused(bench: Bench, tmp_path: Path) -> None:
    """Hydra would take each folder in ``--config-dir`` for a group of configs."""
    (tmp_path / "results").mkdir()
    done = bench("--config-dir", str(tmp_path))
    done.assert_refused(f"results cannot be set, since --config-dir {tmp_path} has a folder of that name\n")


# --- failures after a run has begun


def test_cuda_without_a_cuda_device_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = bench("device=cuda")
    assert done.status == 1
    assert done.err == "rmsexp: device=cuda, but torch sees no CUDA device here; use device=cpu or device=auto\n"
    assert bench.status()["status"] == "failed"


def test_results_that_cannot_be_written_give_no_traceback(bench: Bench) -> None:
    bench.results.write_text("a file")
    for flag in ([], ["-m"]):
        done = bench(*flag)
        assert done.status == 1
        assert "Not a directory" in done.err or "File exists" in done.err
        assert str(bench.results) in done.err
        assert "Traceback" not in done.err


def run_on_cifar10(bench: Bench, root: Path) -> tuple[Ended, dict[str, Any]]:
    """Do a run on the CIFAR-10 files in ``root``; return how the command ended and the content of the run's status."""
    done = bench("scale=small", f"data.root={root}")
    (status,) = bench.results.rglob(record.STATUS)
    return done, record.RunFolder(status.parent).read_status()


def test_missing_data_without_network_are_reported_with_the_command_to_get_them(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:  # bound, not listening: a connection is refused
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{unused.getsockname()[1]}/x.tar.gz")
        done, status = run_on_cifar10(bench, tmp_path / "data")
    assert done.status == 1
    where = str(tmp_path / "data" / "cifar10" / CIFAR10.base_folder)
    command = f"python -m rmsexp.prepare task=cifar10 scale=small data.root={tmp_path / 'data'}"
    assert all(part in done.err for part in (where, command, "scale=demo"))
    assert "Traceback" not in done.err
    assert not (tmp_path / "data").exists()
    assert (status["status"], status["error"]) == ("failed", done.err.removeprefix("rmsexp: ").rstrip("\n"))


class Command:
    """An object whose pickle calls os.system when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def cifar10_files(root: Path, monkeypatch: pytest.MonkeyPatch, more: Any = None) -> Path:
    """Write a training and a test file of two images each, with digests as expected, and return their folder.

    ``more``: a further object in both files.
    """
    folder = root / "cifar10" / CIFAR10.base_folder
    folder.mkdir(parents=True)
    content = pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1], "more": more}, protocol=2)
    for attribute, name in (("train_list", "data_batch_1"), ("test_list", "test_batch")):
        (folder / name).write_bytes(content)
        monkeypatch.setattr(CIFAR10, attribute, [[name, hashlib.md5(content).hexdigest()]])
    return folder


def test_truncated_data_are_reported_as_damaged(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cifar10_files(tmp_path, monkeypatch) / "data_batch_1"
    path.write_bytes(path.read_bytes()[:-100])
    done, status = run_on_cifar10(bench, tmp_path)
    assert (done.status, status["status"]) == (1, "failed")
    assert f"{path.name} is damaged: its md5 is" in done.err
    assert "Delete the folder " in done.err
    assert "Traceback" not in done.err


def test_data_that_would_run_a_command_are_refused(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cifar10_files(tmp_path, monkeypatch, Command(tmp_path / "done")) / "data_batch_1"
    done, status = run_on_cifar10(bench, tmp_path)
    assert (done.status, status["status"]) == (1, "failed")
    assert f"{path.name} is not a batch of CIFAR-10 (it refers to {os.system.__module__}.system" in done.err
    assert not (tmp_path / "done").exists()


def test_a_batch_larger_than_the_training_set_is_refused(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cifar10_files(tmp_path, monkeypatch)
    done, _ = run_on_cifar10(bench, tmp_path)
    assert (done.status, done.err) == (1, "rmsexp: batch_size=8 is more than the 2 training images\n")


def test_an_unexpected_error_writes_its_traceback_to_a_file(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> NoReturn:
        raise RuntimeError("raised by the test")

    at_step(monkeypatch, 3, fail)
    done = bench()
    path = bench.folder() / "traceback.txt"
    assert done.status == 1
    assert done.err.endswith(f"rmsexp: RuntimeError: raised by the test (traceback in {path})\n")
    assert "in fail" in path.read_text()
    assert bench.status()["status"] == "failed"


# --- one run


def test_a_run_from_end_to_end(bench: Bench) -> None:
    done = bench("norm=rms", curves=True)
    assert done.status == 0
    first = done.err.splitlines()[0]
    assert "task=cifar10 norm=rms" in first
    assert "built-in data (shapes)" in first
    assert "scale=paper" in first
    folder, comparison = bench.folder(), bench.folder().parents[1] / "comparison"
    end = done.out.splitlines()
    assert end[0] == "finished at step 4"
    assert end[1].startswith("test    loss ")
    assert end[2:4] == [f"record  {folder}", f"curves  {comparison / 'curves.png'}"]
    assert end[4].startswith("next    python -m rmsexp ")
    following = config.job(shlex.split(end[4])[4:])
    assert following.folder == bench.folder("ln")
    assert {path.name for path in folder.iterdir()} == {
        *(record.CONFIG, record.RUN, record.METRICS, record.STATUS, record.CHECKPOINTS)
    }
    assert {path.name for path in (folder / record.CHECKPOINTS).iterdir()} == {"last.pt", "previous.pt", "best.pt"}
    assert {"curves.png", "curves.svg", "summary.csv", "summary.md"} <= {path.name for path in comparison.iterdir()}
    with (comparison / "summary.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 1
    assert bench.status() == {"status": "finished", "step": 4, "error": None}
    assert [(row["step"], row["split"]) for row in bench.rows()] == [
        *((0, "test"), (2, "train"), (2, "test"), (4, "train"), (4, "test"))
    ]


def test_the_record_of_a_run_is_complete(undisturbed: Path) -> None:
    run = record.read(undisturbed).run
    identity = {"task": "cifar10", "norm": "rms", "scale": "demo", "seed": 0, "series": "rms", "impl": "eager"}
    assert identity | {"setting": SETTING} == {key: run[key] for key in [*identity, "setting"]}
    assert run["dataset"]["builtin"] is True
    assert run["dataset"].keys() == {"name", "digest", "builtin"}
    assert run["parameters"]["total"] == sum(run["parameters"]["modules"].values()) > 0
    (session,) = run["sessions"]
    assert {"from_step", "git", "code", "versions", "device", "threads", "contention", "comparable"} <= session.keys()
    assert session["git"].keys() == {"commit", "dirty"}
    assert (session["from_step"], session["comparable"], session["threads"]) == (0, True, 1)
    assert yaml.safe_load((undisturbed / record.CONFIG).read_text())["batch_size"] == 8
    train = [row for row in record.read(undisturbed).metrics if row["split"] == "train"]
    assert {"step", "epoch", "examples", "loss", "objective", "error", "lr", "grad_norm", "seconds"} <= train[0].keys()
    assert train[0]["seconds"].keys() == set(record.BUCKETS)
    assert train[-1]["examples"] == 8 * 8


def test_a_finished_run_is_not_repeated_and_continues_with_more_steps(bench: Bench, undisturbed: Path) -> None:
    bench()
    before = {path: path.stat().st_mtime_ns for path in bench.folder().rglob("*")}
    done = bench()
    assert done.status == 0
    assert done.out.startswith("already finished at step 4 ")
    assert bench("max_steps=3").out.startswith("already finished at step 4 ")
    assert {path: path.stat().st_mtime_ns for path in bench.folder().rglob("*")} == before
    done = bench("max_steps=8")
    assert done.status == 0
    assert "continuing at step 4" in done.err
    assert "finished at step 8" in done.out
    assert [session["from_step"] for session in record.read(bench.folder()).run["sessions"]] == [0, 4]
    assert_same_end(bench, undisturbed)


def test_force_moves_the_old_run_aside(bench: Bench) -> None:
    bench("max_steps=2")
    old = (bench.folder() / record.METRICS).read_text()
    for number in range(2):
        done = bench("force=true", "max_steps=2")
        assert (done.status, "finished at step 2" in done.out) == (0, True)
        assert bench.folder().with_name(f"seed0.old{number}").is_dir()
    assert (bench.folder().with_name("seed0.old0") / record.METRICS).read_text() == old
    assert list(record.find_runs(bench.results)) == [bench.folder()]


def test_two_processes_never_write_one_run(bench: Bench) -> None:
    with record.RunFolder(bench.folder()).locked():
        for words in ([], ["force=true"], ["-m"]):
            done = bench(*words)
            assert done.status == 1
            assert f"{bench.folder()} is being written by another process (id {os.getpid()})" in done.err
        assert not bench.folder().exists()
    assert bench().status == 0


def test_other_data_is_refused(bench: Bench) -> None:
    bench()
    bench.edit(record.RUN, lambda run: run["dataset"].update(digest="other"))
    rows = bench.rows()
    done = bench("max_steps=8")
    assert done.status == 1
    assert f"{bench.folder()} was trained on other data (digest other, now " in done.err
    assert "force=true" in done.err
    assert bench.rows() == rows
    assert bench.status()["status"] == "finished"


def test_another_config_in_the_folder_is_refused(bench: Bench) -> None:
    bench()
    bench.edit(record.CONFIG, lambda resolved: resolved["optim"].update(lr=0.5))
    rows = bench.rows()
    done = bench("max_steps=8")
    assert done.status == 1
    assert f"{bench.folder()} was begun with another config (optim.lr is now 0.003)" in done.err
    assert bench.rows() == rows
    assert bench.status() == {"status": "finished", "step": 4, "error": None}


def test_a_sweep_with_a_refused_run_fails_although_the_run_in_its_folder_has_finished(bench: Bench) -> None:
    bench()
    bench.edit(record.RUN, lambda run: run["dataset"].update(digest="other"))
    done = bench("-m", "norm=rms,none", "max_steps=6")
    assert done.status == 1
    assert f"failed: {bench.folder()}: it has finished at step 4, and was not continued" in done.out
    assert bench.status("none")["status"] == "finished"
    shutil.copytree(bench.folder("none"), bench.folder("none", 1))
    done = bench("-m", "norm=none", "seed=0,1", "max_steps=6")
    assert done.status == 1
    assert f"failed: {bench.folder('none', 1)}: {bench.folder('none', 1)} holds the run cifar10/" in done.out


def test_continuing_with_changed_code_warns_and_is_recorded(bench: Bench, undisturbed: Path) -> None:
    bench()
    bench.edit(record.RUN, lambda run: run["sessions"][-1].update(code="other"))
    done = bench("max_steps=8")
    assert done.status == 0
    assert "warning: changed since the run's last process: code; savings of time exclude this run" in done.err
    sessions = record.read(bench.folder()).run["sessions"]
    assert [session["comparable"] for session in sessions] == [True, False]
    assert_same_end(bench, undisturbed)


@pytest.mark.parametrize("file", [record.STATUS, record.RUN, record.CONFIG])
def test_a_damaged_file_of_the_record_is_named_and_written_again(file: str, bench: Bench, undisturbed: Path) -> None:
    bench()
    (bench.folder() / file).write_text("{")
    done = bench("max_steps=8")
    assert done.status == 0
    assert f"warning: {bench.folder() / file}" in done.err
    assert f"; it is written again, and the damaged file is kept as {file}.old0\n" in done.err
    assert_same_end(bench, undisturbed)


def test_a_finished_run_whose_record_cannot_be_checked_says_so(bench: Bench) -> None:
    bench()
    bench.edit(record.STATUS, lambda status: [status.pop(key) for key in ("run", "checkpoint", "metrics", "digest")])
    done = bench()
    assert done.status == 0
    assert done.out.splitlines()[1] == f"note    {earlier.UNCHECKED}"


def test_metrics_that_are_not_text_are_cut_where_the_checkpoint_says(bench: Bench, undisturbed: Path) -> None:
    bench("max_steps=8")
    with (bench.folder() / record.METRICS).open("ab") as file:
        file.write(b"\xff\n")
    done = bench("max_steps=8")
    assert done.status == 0
    assert "not a row of metrics; this line and those after it are left out; the run continues" in done.err
    assert_same_end(bench, undisturbed)


# --- damaged checkpoints, a full disk


def damage(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_a_run_continues_from_the_checkpoint_before_a_damaged_one(bench: Bench, undisturbed: Path) -> None:
    bench()
    damage(bench.folder() / record.CHECKPOINTS / "last.pt")
    done = bench("max_steps=8")
    assert done.status == 0
    assert "warning: " in done.err
    assert "last.pt is damaged" in done.err
    assert "continuing from previous.pt" in done.err
    assert "continuing at step 2" in done.err
    assert_same_end(bench, undisturbed)


def test_a_run_with_only_damaged_checkpoints_fails(bench: Bench) -> None:
    bench()
    for name in ("last.pt", "previous.pt"):
        damage(bench.folder() / record.CHECKPOINTS / name)
    done = bench("max_steps=8")
    assert done.status == 1
    assert "last.pt is damaged" in done.err
    assert "start a new run with force=true" in done.err
    assert "Traceback" not in done.err
    assert len(bench.rows()) == 5
    assert bench("max_steps=8", "force=true").status == 0


def no_space(*_: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("module", "name", "status_written"),
    [
        pytest.param(checkpoint, "write_atomic", True, id="checkpoint"),
        pytest.param(record.RunFolder, "append", True, id="metrics"),
        pytest.param(os, "fsync", False, id="everything"),
    ],
)
def test_a_run_continues_after_a_full_disk(
    module: Any, name: str, status_written: bool, bench: Bench, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        at_step(patch, 5, lambda: patch.setattr(module, name, no_space))
        done = bench("max_steps=8")
    assert done.status == 1
    assert "rmsexp: the disk is full" in done.err
    assert "repeat the command: it continues the run" in done.err
    assert "Traceback" not in done.err
    assert bench.status()["status"] == ("failed" if status_written else "interrupted")
    assert ("could not be written" in done.err) == (not status_written)
    assert not list(bench.folder().rglob("*.tmp"))
    payload, warnings = checkpoint.load(bench.folder() / record.CHECKPOINTS)
    assert payload is not None
    assert (payload["state"]["step"], warnings) == (4, [])
    done = bench("max_steps=8")
    assert done.status == 0
    assert "continuing at step 4" in done.err
    assert_same_end(bench, undisturbed)


# --- divergence


def test_an_objective_that_is_not_finite_ends_the_run_at_its_step(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_finite_at(monkeypatch, 5)
    words = ("max_steps=12", "log_every=4", "eval_every=4", "checkpoint_every=4")
    done = bench(*words)
    assert done.status == 0
    assert "diverged at step 5: the training objective of step 5 is not finite" in done.out
    assert bench.status() == {
        "status": "diverged",
        "step": 5,
        "error": "the training objective of step 5 is not finite",
    }
    assert [(row["step"], row["split"]) for row in bench.rows()] == [
        *((0, "test"), (4, "train"), (4, "test"), (5, "train"))
    ]
    assert bench.rows()[-1]["examples"] == 5 * 8
    payload, _ = checkpoint.load(bench.folder() / record.CHECKPOINTS)
    assert payload is not None
    assert payload["state"]["step"] == 4
    again = bench(*words)
    assert again.status == 0
    assert again.out.startswith("already diverged at step 5")


# --- Ctrl-C and SIGTERM


@pytest.mark.parametrize(("number", "step"), [(signal.SIGINT, 3), (signal.SIGTERM, 4)])
def test_a_run_continues_after_a_signal_in_training(
    number: signal.Signals, step: int, bench: Bench, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        at_step(patch, step, lambda: os.kill(os.getpid(), number))
        done = bench("max_steps=8")
    assert done.status == 128 + number
    assert f"interrupted at step {step + 1}; repeat the command to continue" in done.out
    assert bench.status() == {"status": "interrupted", "step": step + 1, "error": f"stopped by {number.name}"}
    done = bench("max_steps=8")
    assert done.status == 0
    assert f"continuing at step {step + 1}" in done.err
    assert_same_end(bench, undisturbed)


@pytest.mark.parametrize("evaluation", [1, 3])
def test_a_run_continues_after_a_signal_in_an_evaluation(
    evaluation: int, bench: Bench, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, calls = Task.evaluate, []

    def interrupted(self: Task, model: torch.nn.Module, extent: Extent) -> Any:
        calls.append(model)
        if len(calls) == evaluation:
            os.kill(os.getpid(), signal.SIGINT)
        return evaluate(self, model, extent)

    with monkeypatch.context() as patch:
        patch.setattr(Task, "evaluate", interrupted)
        assert bench("max_steps=8").status == 130
    assert bench.status()["step"] == 2 * (evaluation - 1)
    assert bench("max_steps=8").status == 0
    assert_same_end(bench, undisturbed)


def test_a_run_continues_after_a_signal_before_training(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Task, "prepare", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        assert bench().status == 130
    assert bench.status()["status"] == "interrupted"
    assert bench().status == 0


def test_ctrl_c_while_the_config_is_composed_prints_one_line(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(config, "job", interrupted)
    done = bench()
    assert (done.status, done.err) == (130, "rmsexp: interrupted\n")


def test_a_signal_ends_the_whole_sweep(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        at_step(patch, 3, lambda: os.kill(os.getpid(), signal.SIGINT))
        assert bench("-m", "norm=rms,ln").status == 130
    assert bench.status()["status"] == "interrupted"
    assert not bench.folder("ln").exists()
    assert bench("-m", "norm=rms,ln").status == 0
    assert bench.status()["status"] == bench.status("ln")["status"] == "finished"


# --- sweeps


def test_a_sweep_continues_after_runs_that_fail_or_diverge(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[str, int]] = []
    build = Task.build

    def build_and_note(self: Task, norm: Any) -> Any:
        order.append((norm.name, self.config.seed))
        return build(self, norm)

    def fail_for_ln(self: Task, norm: Any) -> Any:
        if norm.name == "ln":
            raise RuntimeError("raised by the test")
        return build_and_note(self, norm)

    words = ("-m", "norm=rms,ln,l2", "seed=0,1")
    with monkeypatch.context() as patch:
        patch.setattr(Task, "build", fail_for_ln)
        not_finite_at(patch, 3, "l2")
        done = bench(*words)
    assert done.status == 1
    assert order == [("rms", 0), ("l2", 0), ("rms", 1), ("l2", 1)]
    statuses = {(norm, seed): bench.status(norm, seed)["status"] for norm in ("rms", "ln", "l2") for seed in (0, 1)}
    expected = {"rms": "finished", "ln": "failed", "l2": "diverged"}
    assert statuses == {(norm, seed): status for norm, status in expected.items() for seed in (0, 1)}
    listed = done.out[done.out.rindex("record  ") :]
    for seed in (0, 1):
        assert f"failed: {bench.folder('ln', seed)}: RuntimeError: raised by the test" in listed
        assert f"diverged: {bench.folder('l2', seed)}: the training objective of step 3 is not finite" in listed
    assert f"{bench.folder('rms')}:" not in listed
    assert "repeat the command to do the runs that are missing" in listed

    order.clear()
    monkeypatch.setattr(Task, "build", build_and_note)
    done = bench(*words)
    assert done.status == 0
    assert order == [("ln", 0), ("ln", 1)]
    assert done.out.count("already finished") == done.out.count("already diverged") == 2
    assert all(bench.status("ln", seed)["status"] == "finished" for seed in (0, 1))


def test_a_preset_runs_all_options_with_one_seed_before_the_next_seed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[tuple[str, str]] = []

    def note_and_fail(job: config.Job, *_: Any) -> NoReturn:
        order.append((job.series, job.folder.name))
        raise OSError("raised by the test")

    monkeypatch.setattr("rmsexp.runner.execute", note_and_fail)
    assert bench("sweep=p", "norm.p=0.1,0.2", "seed=0,1").status == 1
    assert order == [(f"prms+p={p}", f"seed{seed}") for seed in (0, 1) for p in (0.1, 0.2)]


def test_runs_in_parallel_share_the_cores(bench: Bench) -> None:
    """Of two runs at a time, each uses half of the cores. They run in new processes, without this process's patches."""
    from joblib.externals.loky import get_reusable_executor

    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    try:
        assert bench("-m", *launcher, "norm=rms,ln", "max_steps=2", "threads=null").status == 0
    finally:
        get_reusable_executor().shutdown(wait=True)
    for norm in ("rms", "ln"):
        run = record.read(bench.folder(norm))
        assert (run.status["status"], run.status["step"]) == ("finished", 2)
        assert run.run["sessions"][0]["threads"] == cores.threads(2)


@pytest.mark.parametrize(("n_jobs", "shared"), [(1, False), (2, True)])
def test_a_run_knows_whether_its_launcher_does_others_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data_root: Path, n_jobs: int, shared: bool
) -> None:
    def contention(device: torch.device, shared: bool) -> Contention:
        shares.append(shared)
        return Contention(device, shared)

    shares: list[bool] = []
    monkeypatch.setattr("rmsexp.runner.Contention", contention)
    job = config.job([*TINY, f"results={tmp_path}", f"data.root={data_root}", "max_steps=1"])
    assert runner.execute(job, runner.Around(n_jobs)).status == "finished"
    assert shares == [shared]


# --- a norm from outside the package

README = Path(__file__).parents[2] / "README.md"


def code_of_readme(language: str, containing: str) -> str:
    """Return the README's only code block of a language that contains the given text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    (match,) = [block for block in blocks if containing in block]
    return match


def test_the_readmes_example_of_a_new_norm_works(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my/norm").mkdir(parents=True)
    (tmp_path / "my_dyisru.py").write_text(code_of_readme("python", "class DyISRU(Norm)"))
    (tmp_path / "my/norm/dyisru.yaml").write_text(code_of_readme("yaml", "my_dyisru.DyISRU"))
    monkeypatch.syspath_prepend(tmp_path)
    outside = ("--config-dir", str(tmp_path / "my"))
    assert bench(*outside, "norm=dyisru", "norm.c=0.1").status == 0
    done = bench("-m", *outside, "norm=rms,dyisru", curves=True)
    assert done.status == 0
    assert all(label in done.out for label in ("RMSNorm", "dyisru", "curves  ", "curves.png"))
    assert bench.status("dyisru")["status"] == bench.status("dyisru+c=0.1")["status"] == "finished"
    with (bench.folder().parents[1] / "comparison/summary.csv").open() as file:
        assert {row["series"] for row in csv.DictReader(file)} == {"rms", "dyisru", "dyisru+c=0.1"}
    assert bench(*outside, "norm=dyisru", "norm.cc=1").err.startswith("rmsexp: norm.cc is not known; did you mean")


# --- from Python; prepare


def test_run_from_python(
    bench: Bench, data_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"results={bench.results}", f"data.root={data_root}", *TINY]
    run = rmsexp.run(task="cifar10", norm="layernorm", overrides=options, quiet=True, seed=0)
    assert capsys.readouterr() == ("", "")
    assert re.fullmatch(r"<run cifar10/.*/ln/seed0: finished at step 4, test loss [0-9.]+, error [0-9.]+>", repr(run))
    assert set(run.curves()["split"]) == {"train", "test"}
    assert {"step", "time", "loss", "error"} <= set(run.curves().columns)
    assert [axes.get_xlabel() for axes in run.plot().axes].count("step") == 3
    assert (run.folder, run.status["status"], run.run["norm"]) == (bench.folder("ln"), "finished", "ln")
    assert run.metrics[-1]["step"] == 4
    assert len(compare.load(bench.results).metrics) == len(run.metrics) == 5
    with pytest.raises(config.ConfigError, match="did you mean rms"):
        rmsexp.run(norm="rmss", overrides=options)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="torch sees no CUDA device"):
        rmsexp.run(overrides=[*options, "device=cuda"])


def test_prepare(data_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run_prepare(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["prepare", f"data.root={data_root}", *words])
        return Ended(prepare.main(), *capsys.readouterr())

    done = run_prepare("task=cifar10")
    assert done.status == 0
    assert done.out.startswith("ready: shapes, digest ")
    assert run_prepare("task=foo").status == 2

    def raise_data_error(_: Path) -> NoReturn:
        raise DataError("not there")

    monkeypatch.setitem(sys.modules["rmsexp.tasks.cifar10"].SOURCES, "cifar10", raise_data_error)
    assert run_prepare("scale=small") == Ended(1, "", "rmsexp: not there\n")
