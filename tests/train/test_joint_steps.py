"""Several processes, as threads of one: bits of the steps, start, time, contention; processes that are lost."""

import itertools
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from distributed_equality import TINY
from helpers.cases import some
from helpers.tasks import task_and_model
from torch import Tensor, nn

from rmsexp.records import record
from rmsexp.system.clock import BUCKETS, Clock
from rmsexp.system.command_line import ConfigError, ReportedError
from rmsexp.system.process import Interrupt
from rmsexp.train import provenance
from rmsexp.train.checkpoint import Identity
from rmsexp.train.contention import Contention
from rmsexp.train.group import Group, LostError, meet
from rmsexp.train.loop import EDGES, Diverged, State, Trainer, share_start
from rmsexp.train.step import Stepper

TASKS = ("attentive_reader", "order_embedding", "language_model")
LIMIT_SECONDS = 60  # a thread that waits longer fails


class Shared:
    """What the threads share.

    ``computing``: the lock of the one that computes, because they share torch's generator and the casts of autocast.
    """

    def __init__(self, size: int) -> None:
        self.computing, self.meeting = threading.Lock(), threading.Barrier(size)
        self.values: list[Any] = [None] * size
        self.queues: list[list[Queue[Tensor]]] = [[Queue() for _ in range(size)] for _ in range(size)]

    @contextmanager
    def others_compute(self) -> Iterator[None]:
        self.computing.release()
        try:
            yield
        finally:
            self.computing.acquire()


class ThreadGroup(Group):
    """One of ``size`` threads, with the methods that steps need."""

    device = torch.device("cpu")

    def __init__(self, rank: int, shared: Shared) -> None:
        self.rank, self.size = rank, len(shared.values)
        self.chosen, self.interrupt, self._shared = slice(rank, None, self.size), Interrupt(), shared

    def gather(self, value: Any) -> list[Any]:
        self._shared.values[self.rank] = value
        self._meet()
        gathered = list(self._shared.values)
        self._meet()
        return gathered

    def _meet(self) -> None:
        with self._shared.others_compute():
            self._shared.meeting.wait(LIMIT_SECONDS)

    def share(self, value: Any) -> Any:
        return pickle.loads(self.gather(pickle.dumps(value))[0])  # a copy, as from torch.distributed

    def send(self, tensor: Tensor, rank: int) -> None:
        self._shared.queues[self.rank][rank].put(tensor.clone())

    def receive(self, tensor: Tensor, rank: int) -> None:
        with self._shared.others_compute():
            received = self._shared.queues[rank][self.rank].get(timeout=LIMIT_SECONDS)
        tensor.copy_(received)

    def broadcast(self, tensor: Tensor, rank: int) -> None:
        tensor.copy_(self.gather(tensor.clone())[rank])

    def sum(self, tensor: Tensor) -> None:
        tensor.copy_(torch.stack(self.gather(tensor.clone())).sum(0))


def in_threads(size: int, work: Callable[[Any], Any]) -> list[Any]:
    """Return ``work(group)`` of each of ``size`` threads, by rank. Raises the first error of a thread."""
    shared, errors = Shared(size), list[BaseException]()

    def begin(rank: int) -> Any:
        torch.set_num_threads(1)  # each thread has a number of its own
        with shared.computing:
            try:
                return work(ThreadGroup(rank, shared))
            except BaseException as error:
                errors.append(error)
                shared.meeting.abort()  # which is an error in threads that wait
                raise

    with ThreadPoolExecutor(size) as pool:
        results = [pool.submit(begin, rank) for rank in range(size)]
    if errors:
        raise errors[0]
    return [result.result() for result in results]


@pytest.fixture
def words(text_cache: Path, small_synthetic_data: None) -> dict[str, list[str]]:  # noqa: ARG001
    shared = [f"data.root={text_cache}", "threads=1", "norm=bn", "norm.min_examples=3"]
    return {task: [f"task={task}", *TINY[task], *shared] for task in TASKS}


def trained(words: list[str], size: int, reduce: str = "ordered") -> list[tuple[Any, ...]]:
    """Return for each process the values of all steps, and then parameters, buffers and optimiser.

    With one process, this is a step without a group.
    """
    made = [task_and_model(*words, f"reduce={reduce}") for _ in range(size)]

    def train(group: Any) -> tuple[Any, ...]:
        task, model = made[group.rank]
        stepper = Stepper(task.config, task, model, group.device, None if size == 1 else group)
        values = []
        for step in range(2):
            batches = task.batches(step) if size == 1 else task.batches(step, group.chosen)
            result = stepper.take(step, batches)
            values.append((result.values, int(result.predictions), int(result.examples)))
        return values, model.state_dict(), stepper.optimizer.state_dict()["state"]

    return in_threads(size, train)


def assert_equal(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


CASES = [*itertools.product(TASKS, ("float32", "bfloat16"))]
SLOW = ("attentive_reader", "bfloat16")  # half of the time; the other tasks test bfloat16, too


@pytest.mark.parametrize(("task", "precision"), some(CASES, [case for case in CASES if case != SLOW]))
def test_any_number_of_processes_gives_the_bits_of_one(task: str, precision: str, words: dict[str, list[str]]) -> None:
    """Of 2, 3 and 4 for the language model in float32, and of 3 for the others."""
    line = [*words[task], f"precision={precision}"]
    (expected,) = trained(line, 1)
    assert all(count.any() for name, count in expected[1].items() if name.endswith(".count"))  # none keeps its start
    for size in (2, 3, 4) if (task, precision) == ("language_model", "float32") else (3,):
        for found in trained(line, size):
            assert_equal(found, expected)


def test_the_fast_sum_is_equal_up_to_rounding_and_the_same_in_all_processes(words: dict[str, list[str]]) -> None:
    (expected,) = trained(words["language_model"], 1)
    results = trained(words["language_model"], 3, "fast")
    for found in results:
        assert_equal(found, results[0])
    torch.testing.assert_close(results[0][0], expected[0], rtol=1e-5, atol=1e-5)
    assert any(not torch.equal(results[0][1][name], value) for name, value in expected[1].items())


# --- the start, the time and the contention


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


DIFFERENCES: dict[str, dict[str, Any]] = {  # what process 2 has, by the key that the error names
    "impl": {"impl": "eager"},  # as on a machine without a compiler
    **{key: {key: 20} for key in EDGES},
    **{key: {"notes": {key: "0123"}} for key in (record.SUBWORDS, record.WORDS)},
    record.OWN_CODE: {"norm": {"_target_": f"{__name__}.Norm"}},  # any module outside of the package
}


@pytest.mark.parametrize("key", DIFFERENCES)
def test_a_difference_between_the_processes_is_named(key: str) -> None:
    with pytest.raises(ReportedError, match=f"the processes of the run differ in {key} "):
        started(**DIFFERENCES[key])


def bare_trainer(group: Any, **attributes: Any) -> Any:
    """Return a trainer without a run, of which only what the tests below read is set."""
    made: Any = Trainer.__new__(Trainer)
    made._group, made._writer, made._contention = group, SimpleNamespace(), Contention(CPU)
    made._interrupt, made._recent = Interrupt(), []
    vars(made).update(attributes)
    return made


def test_the_seconds_of_training_are_those_of_the_slowest_process_and_others_of_process_0() -> None:
    """The slowest one took most time for data and training; its warm-up does not count. Process 0 writes."""
    clocks = [
        {"train": 2.0, "data": 1.5, "eval": 1.0, "checkpoint": 5.0, "log": 2.0},
        {"train": 3.0, "data": 1.0, "checkpoint": 0.5},
        {"train": 3.0, "warmup": 9.0},
    ]

    def collect(group: Any) -> dict[str, float]:
        trainer = bare_trainer(group, clock=Clock(clocks[group.rank]), state=State(step=9))
        trainer._first_step, trainer._first_seconds = 7, 1.0
        trainer._collect()
        return trainer.clock.seconds

    expected = dict.fromkeys(BUCKETS, 0.0) | clocks[0] | {"train": 3.0, "data": 1.0}
    assert in_threads(3, collect) == [expected] * 3


def test_waiting_for_what_process_0_writes_is_no_time_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes meet before the first step after it, outside of every bucket of the clock."""
    seconds: list[dict[str, float]] = []
    group = SimpleNamespace(barrier=lambda: seconds.append(dict(trainer.clock.seconds)), stop=None)
    trainer = bare_trainer(group, clock=Clock(), state=State(step=6))
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
        ([CLEAR, CLEAR, LESS_CLEAR], "undisturbed", 0.009),
        ([CLEAR, CONTENDED, LESS_CLEAR], "disturbed", 0.6),
        ([CONTENDED, UNKNOWN, CLEAR], "disturbed", 0.6),
        ([CLEAR, CLEAR, UNKNOWN], "unknown", None),
    ],
)
def test_the_contention_is_that_of_the_most_disturbed_process(
    times: list[tuple[int, int]], state: str, waited: float | None
) -> None:
    def report(group: Any) -> dict[str, Any]:
        trainer = bare_trainer(group)
        trainer._contention._ran, trainer._contention._waited = times[group.rank]
        trainer._compare_contention()
        return trainer._writer.contention

    for found in in_threads(3, report):
        assert (found["state"], found["waited"]) == (state, waited)


def test_processes_exchange_their_contention_when_a_run_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "_train", Mock(side_effect=Diverged(3)))
    trainer = bare_trainer(SimpleNamespace(size=2, gather=lambda own: [own | {"state": "disturbed"}, own]))
    with pytest.raises(Diverged):
        trainer.run()
    assert trainer._writer.contention["state"] == "disturbed"


# --- processes that are lost, that others wait for, or that are started again


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
    monkeypatch.setattr("rmsexp.train.group.POLL_SECONDS", 0.01)
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


def test_torchs_batch_norm_is_refused_for_several_processes() -> None:
    task, config = SimpleNamespace(optimizer=lambda _: None), SimpleNamespace(reduce="ordered")
    with pytest.raises(ConfigError, match="use norm=bn"):
        Stepper(config, cast(Any, task), nn.BatchNorm1d(3), torch.device("cpu"), cast(Any, SimpleNamespace(size=2)))
