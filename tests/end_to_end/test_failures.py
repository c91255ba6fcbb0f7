"""Runs that fail after they have begun: data, disk, checkpoints, divergence."""

import errno
import os
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest
import torch
from helpers.command_bench import Bench, assert_same_end, at_step, not_finite_at
from torchvision.datasets import CIFAR10

import rmsexp
from rmsexp.records import record
from rmsexp.train import checkpoint


def test_cuda_without_a_cuda_device_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = bench("device=cuda")
    assert done.status == 1
    assert done.err == "rmsexp: torch sees no CUDA device here; use the device cpu\n"
    assert bench.status()["status"] == "failed"
    with pytest.raises(RuntimeError, match="torch sees no CUDA device"):
        rmsexp.run(overrides=[*bench.words, "device=cuda"])
    assert bench().status == 0  # a finished run that cannot go on stays finished
    assert bench("max_steps=6", "device=cuda").status == 1
    assert bench.status() == {"status": "finished", "step": 4, "error": None}


def test_results_that_cannot_be_written_give_no_traceback(bench: Bench) -> None:
    bench.results.symlink_to("/proc/nothing")
    for flag in ([], ["-m"]):
        done = bench(*flag)
        done.assert_failed("No such file or directory" in done.err or "File exists")
        assert str(bench.results) in done.err


def test_missing_data_without_network_are_reported_with_the_command_to_get_them(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:  # bound, not listening: a connection is refused
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{unused.getsockname()[1]}/x.tar.gz")
        done = bench("scale=small", f"data.root={tmp_path / 'data'}")
    (path,) = bench.results.rglob(record.STATUS)
    status = record.RunFolder(path.parent).read_status()
    assert done.status == 1
    where = str(tmp_path / "data" / "cifar10")
    command = f"python -m rmsexp.prepare task=cifar10 scale=small data.root={tmp_path / 'data'}"
    assert all(part in done.err for part in (where, command, "scale=demo"))
    assert "Traceback" not in done.err
    assert (status["status"], status["error"]) == ("failed", done.err.removeprefix("rmsexp: ").rstrip("\n"))


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
@pytest.mark.parametrize("begun", [False, True])
def test_an_error_in_training_has_a_traceback_in_a_file(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: type[Exception], begun: bool
) -> None:
    """Before training a ValueError is a mistake in the options. In training it is a fault, as of an own norm."""

    def fail(*_: object) -> NoReturn:
        raise error("raised by the test")

    with monkeypatch.context() as patch:
        if begun:
            at_step(patch, 3, fail)
        else:
            patch.setattr("rmsexp.tasks.build", fail)
        done, path = bench(), bench.folder() / "traceback.txt"
    is_mistake = error is ValueError and not begun
    where = "raised by the test" if is_mistake else f"{error.__name__}: raised by the test (traceback in {path})"
    assert (done.status, bench.status()["status"]) == (1, "failed")
    assert done.err.endswith(f"rmsexp: {where}\n")
    assert is_mistake or "in fail" in path.read_text()
    assert path.exists() != is_mistake
    if begun:
        assert bench().status == 0
        assert not path.exists()


def test_a_finished_run_says_that_the_code_of_the_users_norm_has_changed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module, config = tmp_path / "edited_norm.py", tmp_path / "my/norm/edited.yaml"
    module.write_text("from rmsexp.norms import RMS\nclass Edited(RMS): ...\n")
    config.parent.mkdir(parents=True)
    config.write_text("_target_: edited_norm.Edited\nname: edited\nimpl: eager\n")
    words = ("--config-dir", str(tmp_path / "my"), "norm=edited")
    assert bench(*words).status == 0
    assert "note" not in bench(*words).out
    module.write_text("from rmsexp.norms import RMS\nclass Edited(RMS): ...  # edited\n")
    assert "note    the module of your own norm or task has changed since" in bench(*words).out
    with pytest.warns(UserWarning, match="edited/seed0: the module of your own norm or task has changed since"):
        rmsexp.run(norm="edited", config_dir=str(tmp_path / "my"), overrides=bench.words, quiet=True)
    assert "own_code" not in bench(*words, "max_steps=6").err  # this process goes on with what it has imported
    monkeypatch.delitem(sys.modules, module.stem)  # as in a new process
    assert "warning: changed since the run's last process: own_code" in bench(*words, "max_steps=8").err


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
    no_space = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with monkeypatch.context() as patch:
        at_step(patch, 5, lambda: patch.setattr(module, name, no_space))
        done = bench("max_steps=8")
    done.assert_failed("rmsexp: the disk is full")
    assert "repeat the command: it continues the run" in done.err
    assert bench.status()["status"] == ("failed" if status_written else "interrupted")
    assert ("could not be written" in done.err) == (not status_written)
    assert not list(bench.folder().rglob("*.tmp"))
    checkpoints = [bench.folder() / record.CHECKPOINTS / name for name in (checkpoint.LAST, checkpoint.PREVIOUS)]
    newest = next(path for path in checkpoints if path.exists())
    assert checkpoint.read(newest)["state"]["step"] == 4
    done = bench("max_steps=8")
    assert done.status == 0
    assert "continuing at step 4" in done.err
    assert_same_end(bench, undisturbed)


def test_a_run_that_diverges_at_its_first_step_has_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    not_finite_at(monkeypatch, 0)
    words = ("evaluation=validation", "data.validation=8", "schedule.steps=40")
    assert bench(*words).status == 0
    again = bench(*words)
    assert again.status == 0
    assert again.out.startswith("already diverged at step 0")


def test_an_objective_that_is_not_finite_ends_the_run_at_its_step(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_finite_at(monkeypatch, 5)
    words = ("max_steps=12", "log_every=4", "eval_every=4", "checkpoint_every=4")
    done = bench(*words)
    assert done.status == 0
    assert "diverged at step 5: the training objective of step 5 is not finite" in done.out
    error = "the training objective of step 5 is not finite"
    assert bench.status() == {"status": "diverged", "step": 5, "error": error}
    rows = [(0, "test"), (4, "train"), (4, "test"), (5, "train")]
    assert [(row["step"], row["split"]) for row in bench.rows()] == rows
    assert bench.rows()[-1]["examples"] == 5 * 8
    checkpoints = [bench.folder() / record.CHECKPOINTS / name for name in (checkpoint.LAST, checkpoint.PREVIOUS)]
    newest = next(path for path in checkpoints if path.exists())
    assert checkpoint.read(newest)["state"]["step"] == 4
    again = bench(*words)
    assert again.status == 0
    assert again.out.startswith("already diverged at step 5")
