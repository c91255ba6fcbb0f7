"""Runs on several processes: equal to one process to the bit, signals, processes that are lost, messages."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import distributed_equality
import forked_run
import pytest
import torch
from helpers.campaigns import RUNS
from helpers.stopping import assert_same, send

from rmsexp import config
from rmsexp.commands import run
from rmsexp.data import text
from rmsexp.records import record
from rmsexp.system import process
from rmsexp.system.process import Interrupt, Interrupted
from rmsexp.tasks import language_model
from rmsexp.train.device import set_up_device
from rmsexp.train.group import Group, each
from rmsexp.work import runner


@pytest.mark.skipif(torch.cuda.is_available(), reason="with GPUs, autograd may not be used before and after a fork")
def test_a_run_that_loses_a_process_saves_its_last_step_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 1 is killed when it begins step 9. All have met at this step to log; the last checkpoint is of step 7."""
    sentences = text.sentences(60, 12, 13)
    monkeypatch.setitem(language_model.SOURCES, "sentences", lambda *_: sentences)
    monkeypatch.setattr(forked_run, "KEPT", {})
    monkeypatch.setattr(forked_run, "LIMIT_SECONDS", 120)
    words = [*distributed_equality.words_of("language_model", "bn", 12, "tiny"), f"data.root={tmp_path}"]
    one, two = ([*words, f"results={tmp_path / name}"] for name in ("one", "two"))
    assert runner.execute(config.job(one)).status == "finished"

    statuses = forked_run.run(two, 2, tmp_path / "log.txt", forked_run.Kill(1, 9, signal.SIGKILL))
    log = (tmp_path / "log.txt").read_text()
    assert statuses == [1, -signal.SIGKILL], log
    assert "the run has lost a process (" in log
    assert "saved step 9\n" in log

    assert runner.execute(config.job(two)).status == "finished"
    assert_same(tmp_path / "one", tmp_path / "two")
    (folder,) = record.find_runs(tmp_path / "two")
    of_two, of_one = record.RunFolder(folder).read_run()["sessions"]
    facts = {"world_size": 2, "backend": "gloo", "hosts": [platform.node()]}
    assert {key: of_two[key] for key in facts} == facts
    assert of_one["from_step"] == 9
    assert "world_size" not in of_one


@pytest.mark.minutes
def test_any_number_of_processes_gives_the_bits_of_one(data_root: Path) -> None:
    """The second process that is stopped gets SIGTERM, which stops all processes after the same step."""
    words = ["--scale", "tiny", "--steps", "22", "--data-root", str(data_root)]
    command = [sys.executable, distributed_equality.__file__, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * 6
    assert all("equal;" in line for line in lines)


@pytest.mark.minutes
def test_torchrun_starts_a_killed_run_again(tmp_path: Path) -> None:
    """The run continues, although its command has force=true, and ends as one on one process does."""
    edges = ["schedule.steps=100", "checkpoint_every=5", "log_every=5", "micro_batches=2", "threads=1"]
    words = [*(f"{key}={value}" for key, value in RUNS.items()), *edges]
    assert runner.execute(config.job([*words, f"results={tmp_path / 'one'}"])).status == "finished"
    options = ["--standalone", "--nproc_per_node=2", "--max-restarts=1", "-m", "rmsexp"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *words, f"results={tmp_path / 'two'}"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([*command, "force=true"], **pipes) as torchrun:
        send(signal.SIGKILL, tmp_path / "two", 20, lambda: torchrun.poll() is not None)
        output, _ = torchrun.communicate(timeout=300)
    assert torchrun.returncode == 0, output
    assert "force=true is ignored, because torchrun or SLURM has started this command again" in output
    (folder,) = record.find_runs(tmp_path / "two")
    starts = [session["from_step"] for session in record.RunFolder(folder).read_run()["sessions"]]
    assert len(starts) == 2
    assert starts[1] >= 15
    assert_same(tmp_path / "one", tmp_path / "two")


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process one that torchrun has started, the first of three."""
    for key, value in {"TORCHELASTIC_RUN_ID": "test", "RANK": "0", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(key, value)


@pytest.mark.usefixtures("torchrun")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["micro_batches=2"], "3 processes need as many micro-batches per step; set micro_batches=3 or more"),
        (["task=transformer", "accumulate=2"], "set accumulate=3 or more"),
        (["-m", "seed=0,1"], "a sweep (-m) has several runs"),
    ],
)
def test_mistakes_are_named_before_the_processes_meet(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([*words, f"results={tmp_path}"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("torchrun")
def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *_, **__: None)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    with pytest.raises(ValueError, match="torch sees 2 GPUs here; start at most as many processes"):
        set_up_device(config.job(["device=cuda", "threads=1", "micro_batches=3"]).config)


@pytest.mark.usefixtures("torchrun")
def test_the_timeout_of_the_config_is_that_of_the_communication(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: object, timeout: timedelta, **__: object) -> None:
        raise TimeoutError(timeout.total_seconds())

    store = torch.distributed.HashStore()
    monkeypatch.setattr("rmsexp.train.group.rendezvous", lambda *_, **__: iter([(store, 0, 3)]))
    monkeypatch.setattr("rmsexp.train.group.meet", lambda *_: store)
    monkeypatch.setattr("torch.distributed.init_process_group", begin)
    with pytest.raises(TimeoutError, match=r"^7\.5$"):
        runner.execute_jointly(config.job(["distributed.timeout=7.5", "micro_batches=3", "threads=1"]))


def test_a_process_without_torchrun_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert process.rank_and_size() == (0, 1)
    assert each(lambda item: item + 1, range(3)) == [1, 2, 3]


class Threads(Group):
    """A group; ``gather`` returns fixed values of the other processes beside that of this one."""

    rank, size, chosen = 1, 3, slice(1, None, 3)

    def __init__(self, *others: tuple[Any, Any]) -> None:
        self.others, self.interrupt = iter(others), Interrupt()

    def gather(self, value: Any) -> list[Any]:
        first, last = next(self.others)
        return [first, value, last]


def test_any_host_of_a_run_may_have_started_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun counts a restart only on the host whose process has failed."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    monkeypatch.setattr("torch.distributed.get_backend", lambda: "gloo")
    for others in ((False, False), (False, True)):
        values = {str: ["a", "b"], bool: list(others)}
        monkeypatch.setattr(Group, "gather", lambda _, value, values=values: values[type(value)])
        both = Group(torch.distributed.HashStore(), torch.device("cpu"))
        assert both.is_restarted == any(others)


def test_results_of_shared_work_come_in_the_order_of_the_items(monkeypatch: pytest.MonkeyPatch) -> None:
    others = (None, None), (["0", "3", "6"], ["2", "5"])
    monkeypatch.setattr("rmsexp.train.group._group", Threads(*others))
    assert each(str, range(7)) == list("0123456")


def test_a_signal_to_one_process_ends_the_shared_work_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmsexp.train.group._group", Threads((None, 15)))
    with pytest.raises(Interrupted) as stopped:
        each(str, range(3))
    assert stopped.value.signum == 15
