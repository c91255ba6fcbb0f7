"""Runs on several processes: equal to one process to the bit, signals, processes that are lost, messages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rmsexp import app, config, process
from rmsexp.compare.records.one_run import _machine
from rmsexp.train.device import set_up_device
from rmsexp.train.distributed import heartbeat
from rmsexp.train.distributed.group import Group, LostError, each
from rmsexp.train.distributed.heartbeat import Heartbeat
from rmsexp.train.interrupt import Interrupt, Interrupted
from rmsexp.train.loop import Diverged

EQUALITY = Path(__file__).parents[2] / "scripts" / "distributed_equality.py"


def equality(*words: str) -> str:
    """Return what the script prints, which fails if a run differs from that of one process."""
    done = subprocess.run([sys.executable, str(EQUALITY), *words], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


@pytest.mark.minutes
def test_three_processes_give_the_bits_of_one_also_if_one_is_killed() -> None:
    """The killed run is continued by one process. This task's runs start fastest."""
    lines = equality("--tasks", "language_model", "--norms", "bn", "--steps", "12", "--sizes", "1,3").splitlines()
    assert [line.split(";")[0] for line in lines] == ["language_model bn: equal"]


@pytest.mark.minutes
def test_any_number_of_processes_gives_the_bits_of_one(data_root: Path) -> None:
    """The second process that is stopped gets SIGTERM, which stops all processes after the same step."""
    lines = equality("--steps", "22", "--data-root", str(data_root)).splitlines()
    assert len(lines) == 2 * 6
    assert all("equal;" in line for line in lines)


@pytest.mark.minutes
def test_a_process_that_does_not_answer_ends_the_run_within_a_minute(data_root: Path) -> None:
    """A stopped process does not close its connections, so the others notice it by its heartbeat."""
    lines = equality("--hang", "--data-root", str(data_root)).splitlines()
    assert lines[-1].startswith("a process that does not answer: ")


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
    assert app.main([*words, f"results={tmp_path}"]) == 2
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


def test_how_to_reduce_is_part_of_the_identity_and_the_timeout_is_not() -> None:
    jobs = [config.job(words) for words in ([], ["reduce=ordered"], ["distributed.timeout=5"], ["reduce=fast"])]
    assert [job.setting for job in jobs] == ["demo", "demo", "demo", "demo+reduce=fast"]
    assert len({config.digest(job.resolved) for job in jobs[:3]}) == 1


def test_a_process_without_torchrun_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert process.rank_and_size() == (0, 1)
    assert each(lambda item: item + 1, range(3)) == [1, 2, 3]


class Threads:
    """A group whose other processes hold fixed values; ``gather`` returns them beside that of this process."""

    rank, size, chosen = 1, 3, slice(1, None, 3)

    def __init__(self, *others: Any) -> None:
        self.others, self.interrupt = others, Interrupt(joint=True)

    def gather(self, value: Any) -> list[Any]:
        return [self.others[0], value, self.others[1]]

    def require_alive(self) -> None:
        pass

    require_equal = Group.require_equal
    interleaved = Group.interleaved


def test_any_host_of_a_run_may_have_started_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun counts a restart only on the host whose process has failed."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    monkeypatch.setattr("torch.distributed.get_backend", lambda: "gloo")
    for others in ((False, False), (False, True)):
        values = {tuple: [("a", 1), ("b", 2)], bool: list(others)}
        monkeypatch.setattr(Group, "gather", lambda _, value, values=values: values[type(value)])
        both = Group(torch.distributed.HashStore(), torch.device("cpu"))
        both.leave()
        assert both.is_restarted == any(others)


def test_results_of_shared_work_come_in_the_order_of_the_items(monkeypatch: pytest.MonkeyPatch) -> None:
    others = (None, ["0", "3", "6"]), (None, ["2", "5"])
    monkeypatch.setattr("rmsexp.train.distributed.group._group", Threads(*others))
    assert each(str, range(7)) == list("0123456")


def test_a_signal_to_one_process_ends_the_shared_work_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmsexp.train.distributed.group._group", Threads((None, ["0"]), (15, [])))
    with pytest.raises(Interrupted) as stopped:
        each(str, range(3))
    assert stopped.value.signum == 15


def test_a_difference_between_the_processes_is_named() -> None:
    group: Any = Threads({"torch": "2.15"}, {"torch": "2.14"})
    with pytest.raises(Exception, match=r"differ in torch \(2.15 in process 1, 2.14 in process 2\)"):
        group.require_equal({"torch": "2.15"})


class Store:
    """What torchrun's store does for the heartbeat. ``beating``: whether the other process beats."""

    def __init__(self, beating: bool) -> None:
        self.values: dict[str, bytes] = {}
        self.beating = beating

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()
        if self.beating:
            self.values["beat1"] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key]


ENDED_THREAD = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the statuses with which the heartbeat's thread ends the process; here it ends the thread."""
    statuses: list[int] = []

    def end(status: int) -> None:
        statuses.append(status)
        raise SystemExit

    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(heartbeat, "LIMIT_SECONDS", 0.2)
    monkeypatch.setattr(heartbeat, "os", SimpleNamespace(_exit=end))
    return statuses


@contextmanager
def beating(others: bool, on_loss: Callable[[], object]) -> Iterator[Heartbeat]:
    store: Any = Store(others)
    beat = Heartbeat(store, 0, 2)
    beat.on_loss = on_loss  # type: ignore[assignment]
    beat.start()
    yield beat
    beat.stop()


@ENDED_THREAD
@pytest.mark.parametrize("others", [True, False])
def test_a_process_without_heartbeat_is_lost(others: bool, exits: list[int]) -> None:
    """The process that waits for it saves and ends; a process that computes learns of it when it next waits."""
    saved: list[bool] = []
    with beating(others, lambda: saved.append(True)) as beat:
        with beat.waiting():
            heartbeat.threading.Event().wait(1.0)
        assert (exits, saved) == ([], []) if others else ([1], [True])
        if not others:
            with pytest.raises(RuntimeError, match="process 1 of the run has not answered"), beat.waiting():
                pass
    if others:
        assert beat._store.get("beat0") == b"done"


@ENDED_THREAD
def test_a_process_that_computes_for_long_ends_with_a_message(
    exits: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    saved: list[bool] = []
    with beating(False, lambda: saved.append(True)):
        heartbeat.threading.Event().wait(1.0)
    assert (exits, saved) == ([1], [])
    assert "process 1 of the run has not answered for 0 seconds, and this one computes" in capsys.readouterr().err


@ENDED_THREAD
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Diverged(3, "the training objective")])
def test_a_process_ends_also_if_it_cannot_save(
    error: Exception, exits: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    with beating(False, fail) as beat, beat.waiting():
        heartbeat.threading.Event().wait(1.0)
    assert exits == [1]
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == f"rmsexp: the last step could not be saved ({error}); the last checkpoint remains"


def group(store: Any, rank: int) -> Group:
    """Return process ``rank`` of two, without communication but that of the store. Nobody has begun to beat."""
    made = Group.__new__(Group)
    made.rank, made.size, made.interrupt = rank, 2, Interrupt(joint=True)
    made._store, made._heartbeat = store, Heartbeat(store, rank, 2)
    return made


def test_shared_work_ends_between_two_items_if_a_process_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation may take minutes before it waits for the other processes."""
    first, done = group(None, 0), list[int]()
    monkeypatch.setattr("rmsexp.train.distributed.group._group", first)

    def work(item: int) -> None:
        done.append(item)
        first._heartbeat.lost = "process 1 of the run has not answered"

    with pytest.raises(LostError, match=r"process 1 of the run has not answered.*repeat the command"):
        each(work, range(8))
    assert done == [0]


def test_the_last_step_is_saved_after_the_heartbeat_has_stopped() -> None:
    first, saved = group(torch.distributed.HashStore(), 0), list[bool]()
    first._heartbeat.start()

    def lose_the_other() -> None:
        with first.guarded(lambda: saved.append(first._heartbeat._thread.is_alive())):
            first._heartbeat.lost = "process 1 of the run has not answered"
            first.require_alive()

    with pytest.raises(LostError):
        lose_the_other()
    assert saved == [False]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """Return the processes of a run with one on each of two hosts; they beat."""
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.01)
    store = torch.distributed.HashStore()
    both = [group(store, rank) for rank in range(2)]
    for one in both:
        one._heartbeat.start()
    return both


def test_all_wait_for_the_host_that_prepares_its_data_last(hosts: list[Group]) -> None:
    done: list[str] = []

    def prepare(rank: int) -> None:
        with hosts[rank].turn():
            heartbeat.threading.Event().wait(0.5 * rank)
            done.append(f"{rank} is ready")
        done.append("training begins")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(prepare, range(2)))
    for one in hosts:
        one.leave()
    assert done == ["0 is ready", "1 is ready", *["training begins"] * 2]


def test_a_host_that_fails_to_prepare_its_data_ends_the_wait(hosts: list[Group]) -> None:
    first, second = hosts

    def prepare() -> None:
        with first.turn():
            second.leave()  # as after an error

    with pytest.raises(LostError, match="process 1 has ended"):
        prepare()
    first.leave()


def test_a_second_signal_to_one_of_several_processes_changes_nothing() -> None:
    """torchrun sends SIGTERM to processes that have got Ctrl-C from the terminal already."""
    interrupt = Interrupt(joint=True)

    def get_two_signals() -> None:
        with interrupt.deferred():
            for number in (2, 15):
                interrupt._handle(number, None)

    with pytest.raises(Interrupted) as stopped:
        get_two_signals()
    assert (stopped.value.signum, stopped.value.torn) == (2, False)


def test_times_of_several_processes_are_of_another_machine() -> None:
    session: dict[str, Any] = {"machine": {"id": "3f"}}
    assert _machine(session) == "3f"
    assert _machine(session | {"world_size": 2}) == "3f, 2 processes"
