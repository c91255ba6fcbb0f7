"""Parts of a result in several processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from rmsexp.data import DataError
from rmsexp.data.workers import in_processes
from rmsexp.system import cores


@pytest.fixture(autouse=True)
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "threads_while_others_wait", lambda: 2)


def work(item: str) -> tuple[str, int]:
    if item == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return item.upper(), os.getpid()


def test_results_are_in_order_and_items_are_taken_as_they_are_needed() -> None:
    taken: list[str] = []

    def items() -> Iterator[str]:
        for item in "abcdefghij":
            taken.append(item)
            yield item

    results = in_processes(work, items())
    first, process = next(results)
    assert len(taken) < 5
    assert [first, *(item for item, _ in results)] == list("ABCDEFGHIJ")
    assert process != os.getpid()


@pytest.mark.parametrize("items", ["", "a"])
def test_a_single_item_needs_no_process(items: str) -> None:
    assert list(in_processes(work, items)) == [(item.upper(), os.getpid()) for item in items]


def test_a_killed_process_is_named() -> None:
    with pytest.raises(DataError, match="was killed"):
        list(in_processes(work, ["a", "killed", "b"]))
