"""Processes of a run that are lost, that others wait for, or that are started again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rmsexp.train.distributed.group import Group, LostError, meet


def group(store: Any, rank: int) -> Group:
    """Return process ``rank`` of two, without communication but that of the store."""
    made = Group.__new__(Group)
    made.rank, made.size, made._store, made._has_announced = rank, 2, store, True
    return made


def test_all_wait_for_the_process_that_prepares_its_data_last() -> None:
    store, done = torch.distributed.HashStore(), list[str]()

    def prepare(rank: int) -> None:
        with group(store, rank).preparing():
            threading.Event().wait(0.5 * rank)
            done.append(f"{rank} is ready")
        done.append("training begins")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(prepare, range(2)))
    assert done == ["0 is ready", "1 is ready", *["training begins"] * 2]


def test_a_process_that_sends_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of gloo, which waits in earnest, is recognised."""
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        gloo, _ = pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60)), range(2))
    patience = timedelta(seconds=0.1)
    monkeypatch.setattr(dist, "recv", lambda tensor, rank: gloo.recv([tensor], rank, 0).wait(patience))
    with pytest.raises(LostError, match=r"distributed.timeout"):
        group(store, 0).receive(torch.zeros(1), 1)


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
