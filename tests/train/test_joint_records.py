"""What several processes agree upon besides steps, as threads of one: the start, the time and the contention."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.thread_group import in_threads
from torch import nn

from rmsexp.records import record
from rmsexp.system.clock import BUCKETS, Clock
from rmsexp.system.command_line import ReportedError
from rmsexp.train import provenance
from rmsexp.train.checkpoint import Identity
from rmsexp.train.contention import Contention
from rmsexp.train.interrupt import Interrupt
from rmsexp.train.loop import EDGES, Diverged, State, Trainer, share_start

CPU = torch.device("cpu")


EVERY = dict.fromkeys(EDGES, 10)


def started(notes: Mapping[str, str] = {}, **resolved: Any) -> list[torch.Tensor]:
    """Let three processes share the start of process 0; return the weights of all.

    ``notes``: those of the task of process 2. ``resolved``: values of its config.
    """

    def start(group: Any) -> torch.Tensor:
        model = nn.Linear(2, 2, bias=False)
        nn.init.constant_(model.weight, group.rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

        task = SimpleNamespace(notes=notes if group.rank == 2 else {})
        stepper: Any = SimpleNamespace(task=task, model=model, optimizer=optimizer, group=group)
        first = (State(step=7), Clock()) if group.rank == 0 else None
        config = EVERY | resolved if group.rank == 2 else EVERY
        impl = resolved.get("impl", "fused") if group.rank == 2 else "fused"
        assert share_start(stepper, first, Identity(0, "config", "data"), config, impl)[0].step == 7
        return model.weight.detach()

    provenance.code()  # reads all files of the package once, before the threads do
    return in_threads(3, start)


def test_all_processes_begin_with_the_parameters_of_process_0() -> None:
    first, *others = started()
    assert all(torch.equal(weight, first) for weight in others)


def test_a_difference_in_the_implementation_of_norms_is_an_error() -> None:
    """As on a machine without a compiler, whose norms are eager."""
    with pytest.raises(ReportedError, match="the processes of the run differ in impl "):
        started(impl="eager")


@pytest.mark.parametrize("key", EDGES)
def test_a_difference_in_the_steps_at_which_processes_meet_is_an_error(key: str) -> None:
    with pytest.raises(ReportedError, match=f"the processes of the run differ in {key} "):
        started(**{key: 20})


def test_a_difference_in_learnt_subwords_or_own_modules_is_an_error() -> None:
    for key in (record.SUBWORDS, record.WORDS):
        with pytest.raises(ReportedError, match=f"the processes of the run differ in {key}"):
            started(notes={key: "0123"})
    with pytest.raises(ReportedError, match="the processes of the run differ in own_code"):
        started(norm={"_target_": f"{__name__}.Norm"})  # any module outside of the package


def test_the_seconds_of_training_are_those_of_the_slowest_process_and_others_of_process_0() -> None:
    """The slowest one took most time for data and training; its warm-up does not count. Process 0 writes."""
    clocks = [
        {"train": 2.0, "data": 1.5, "eval": 1.0, "checkpoint": 5.0, "log": 2.0},
        {"train": 3.0, "data": 1.0, "checkpoint": 0.5},
        {"train": 3.0, "warmup": 9.0},
    ]

    def collect(group: Any) -> dict[str, float]:
        trainer: Any = Trainer.__new__(Trainer)
        trainer.clock, trainer._recent = Clock(clocks[group.rank]), []
        trainer.state, trainer._first_step, trainer._first_seconds = State(step=9), 7, 1.0
        trainer._group = group
        trainer._collect()
        return trainer.clock.seconds

    expected = dict.fromkeys(BUCKETS, 0.0) | clocks[0] | {"train": 3.0, "data": 1.0}
    assert in_threads(3, collect) == [expected] * 3


def test_waiting_for_what_process_0_writes_is_no_time_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes meet before the first step after it, outside of every bucket of the clock."""
    seconds: list[dict[str, float]] = []
    trainer: Any = Trainer.__new__(Trainer)
    trainer.clock = Clock()
    trainer._group = SimpleNamespace(barrier=lambda: seconds.append(dict(trainer.clock.seconds)), stop=None)
    trainer.state, trainer._pause, trainer._interrupt = State(step=6), None, Interrupt()
    trainer._contention, trainer._recent = Contention(CPU), []
    trainer._stepper = SimpleNamespace(device=CPU)
    monkeypatch.setattr(Trainer, "_batches", lambda *_: None)
    monkeypatch.setattr(Trainer, "_update", lambda _, step, __: seconds.append({"step": step}))
    monkeypatch.setattr(Trainer, "_collect", lambda _: None)
    trainer._train_to(7)
    assert seconds == [dict.fromkeys(BUCKETS, 0.0), {"step": 6}]


# Nanoseconds on a core, and waiting for one.
CLEAR, LESS_CLEAR, UNKNOWN, CONTENDED = (1000, 1), (1000, 9), (0, 0), (1000, 600)


@pytest.mark.parametrize(
    ("times", "state", "waited"),
    [
        ([CLEAR, CLEAR, LESS_CLEAR], "clear", 0.009),
        ([CLEAR, CONTENDED, LESS_CLEAR], "contended", 0.6),
        ([CONTENDED, UNKNOWN, CLEAR], "contended", 0.6),
        ([CLEAR, CLEAR, UNKNOWN], "unknown", None),
    ],
)
def test_the_contention_is_that_of_the_most_disturbed_process(
    times: list[tuple[int, int]], state: str, waited: float | None
) -> None:
    def report(group: Any) -> dict[str, Any]:
        trainer: Any = Trainer.__new__(Trainer)
        trainer._group, trainer._writer, trainer._contention = group, SimpleNamespace(), Contention(CPU)
        trainer._contention._ran, trainer._contention._waited = times[group.rank]
        trainer._compare_contention()
        return trainer._writer.contention

    for found in in_threads(3, report):
        assert (found["state"], found["waited"]) == (state, waited)


def test_processes_exchange_their_contention_when_a_run_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Any) -> None:  # noqa: ARG001
        raise Diverged(3)

    monkeypatch.setattr(Trainer, "_train", run)
    trainer: Any = Trainer.__new__(Trainer)
    trainer._group = SimpleNamespace(size=2, gather=lambda own: [own | {"state": "contended"}, own])
    trainer._interrupt, trainer._contention, trainer._writer = Interrupt(), Contention(CPU), SimpleNamespace()
    with pytest.raises(Diverged):
        trainer.run()
    assert trainer._writer.contention["state"] == "contended"
