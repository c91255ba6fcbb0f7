"""Processes of a run that are lost, that cannot save, that compute for long, or that others wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rmsexp.train.distributed import heartbeat
from rmsexp.train.distributed.group import Group, LostError, each, meet
from rmsexp.train.distributed.heartbeat import Heartbeat
from rmsexp.train.interrupt import Interrupt
from rmsexp.train.loop import Diverged


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


def wait_for(exits: list[int]) -> None:
    """Wait until the heartbeat's thread has ended the process, for at most ten seconds."""
    for _ in range(1000):
        if exits:
            return
        heartbeat.threading.Event().wait(0.01)


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
            if others:
                heartbeat.threading.Event().wait(0.5)
            else:
                wait_for(exits)
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
        wait_for(exits)
    assert (exits, saved) == ([1], [])
    assert "process 1 of the run has not answered for 0 seconds, and this one computes" in capsys.readouterr().err


@ENDED_THREAD
def test_a_store_that_does_not_answer_is_noticed(exits: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    """The host of the store may be switched off: the connection then neither answers nor fails."""
    answers = heartbeat.threading.Event()

    class Silent(Store):
        def set(self, key: str, value: str) -> None:  # noqa: ARG002
            answers.wait(10.0)

    store: Any = Silent(beating=True)
    beat = Heartbeat(store, 1, 2)
    beat.start()
    with beat.waiting():
        wait_for(exits)
    assert exits == [1]
    assert "the store that torchrun keeps for the processes of the run does not answer" in capsys.readouterr().err
    beat.stop()  # which does not wait for the store
    assert beat._threads[0].is_alive()
    answers.set()
    beat._threads[0].join()


@ENDED_THREAD
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Diverged(3, "the training objective")])
def test_a_process_ends_also_if_it_cannot_save(
    error: Exception, exits: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    with beating(False, fail) as beat, beat.waiting():
        wait_for(exits)
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
        with first.guarded(lambda: saved.append(first._heartbeat._threads[1].is_alive())):
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


def test_a_process_that_beats_but_sends_nothing_is_a_reason(
    hosts: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message of gloo, which waits in earnest, is recognised."""
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        gloo, _ = pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60)), range(2))
    patience = timedelta(seconds=0.1)
    monkeypatch.setattr(dist, "recv", lambda tensor, rank: gloo.recv([tensor], rank, 0).wait(patience))
    with pytest.raises(
        LostError, match=r"lost a process \(no message within distributed.timeout\); repeat the command"
    ):
        hosts[0].receive(torch.zeros(1), 1)
    for one in hosts:
        one.leave()


@pytest.mark.parametrize("restarts", [1, 2])
def test_processes_that_are_started_again_find_nothing_of_those_before(
    restarts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 0 is there first, and torchrun's store still has the name of the process 1 before."""
    monkeypatch.setattr("rmsexp.train.distributed.group.POLL_SECONDS", 0.01)
    shared = dist.HashStore()
    with ThreadPoolExecutor() as threads:
        for _ in range(1 + restarts):
            first = threads.submit(meet, shared, 0, 2, 60.0)
            with pytest.raises(TimeoutError):
                first.result(0.1)
            second = meet(shared, 1, 2, 60.0)
            assert not second.check(["address"])
            first.result().set("address", "here")
            assert second.get("address") == b"here"
