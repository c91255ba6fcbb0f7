"""Measure what a second process gains: times of training steps with two processes of one thread, and with one process.

    python scripts/distributed_throughput.py [--tasks cifar10,rnnsearch] [--repetitions 6] [--rounds 20] [OVERRIDE ...]

Each repetition starts three teams that train the same model with two micro-batches per step: two processes of one
thread, one process of two threads, and one process of one thread. In each round every team takes a block of the same
steps, in random order, while the others wait. A step is timed with the loading of its batch, until the slower process
has ended. The ratios are over repetitions, with one of them over its rounds; above 1 two processes are faster.
The share of communication is the time that a process of the first team spends in sending, receiving and waiting for the
other one; the parts of a step are those that its process 0 spends in forward, backward and update, with communication.
A task is contended if something else disturbed the process of one thread; teams that use both cores wait for a core in
any case. The result is also written to a record (check_record.py); Ctrl-C ends the check, and its record has the tasks
that are finished. Run it on a quiet machine with two cores.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import as_torchrun
import check_record
from torch.distributed import TCPStore

from rmsexp import config
from rmsexp.measure.interleaved import BLOCK_SECONDS, FEWEST_STEPS
from rmsexp.measure.steps import make_stepper
from rmsexp.rules.ratios import Interval, over_processes, paired_ratio
from rmsexp.system import process
from rmsexp.task import ALL
from rmsexp.train.contention import Contention
from rmsexp.train.device import set_up_device
from rmsexp.train.distributed.group import Group, joined
from rmsexp.train.distributed.joint import JointContention
from rmsexp.train.randomness import permutation
from rmsexp.train.step import WARMUP_STEPS

TASKS = ("cifar10", "attentive_reader", "order_embedding", "rnnsearch", "transformer", "language_model")
PAIR, WIDE, SINGLE = "two processes", "one process of two threads", "one process of one thread"
TEAMS = {PAIR: (2, 1), WIDE: (1, 2), SINGLE: (1, 1)}  # number of processes, threads of each
COMMUNICATION = "communication"
TIMEOUT_SECONDS = 600


class Block(NamedTuple):
    """Seconds per step of a block, and of its parts by name."""

    seconds: float
    parts: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="tasks, with commas (all)")
    parser.add_argument(
        "--repetitions", type=check_record.at_least(1), default=6, help="how often fresh processes are started (6)"
    )
    parser.add_argument("--rounds", type=check_record.at_least(2), default=20, help="rounds of each repetition (20)")
    check_record.add_option(parser)
    parser.add_argument("overrides", nargs="*", help="as on the command line of rmsexp")
    options = parser.parse_args()
    overrides = ["norm=rms", *map(config.expand_home, options.overrides)]
    written, found = check_record.Check("distributed_throughput", options.results), []

    def write() -> None:
        written.write({"rounds": options.rounds, "repetitions": options.repetitions, "tasks": found})

    try:
        with written.measuring():
            for task in options.tasks.split(","):
                key, _ = config.job([f"task={task}"]).config.parts
                words = [f"task={task}", f"{key}=2", *overrides]
                measured = [measure(words, options.rounds, number) for number in range(options.repetitions)]
                found.append({"task": task, "setting": config.job(words).setting} | summary(measured))
                print(describe(found[-1]), flush=True)
    except KeyboardInterrupt:
        if found:
            write()
        raise
    write()


def measure(words: Sequence[str], rounds: int, number: int) -> dict[str, Any]:
    """Return the seconds per step of each team in each round, the parts of the first team's, and the contention."""
    teams = {name: Team(words, size, threads) for name, (size, threads) in TEAMS.items()}
    names, first = list(teams), WARMUP_STEPS
    try:
        slowest = max(team.block(0, WARMUP_STEPS)[0].seconds for team in teams.values())
        steps = max(FEWEST_STEPS, math.ceil(BLOCK_SECONDS / slowest))
        blocks: dict[str, list[list[Block]]] = {name: [] for name in names}
        for place in range(rounds):
            for index in permutation(len(names), number, "round", place).tolist():
                blocks[names[index]].append(teams[names[index]].block(first, steps))
            first += 1 + steps
        state = {name: team.end() for name, team in teams.items()}[SINGLE][0]
    finally:
        for team in teams.values():
            team.kill()
    seconds = {name: [max(block.seconds for block in of_round) for of_round in blocks[name]] for name in names}
    shares = [block.parts[COMMUNICATION] / block.seconds for of_round in blocks[PAIR] for block in of_round]
    of_first = [of_round[0].parts for of_round in blocks[PAIR]]
    parts = {name: statistics.median(part[name] for part in of_first) for name in of_first[0]}
    return {"steps": steps, "seconds": seconds, "share": statistics.median(shares), "parts": parts, "state": state}


def summary(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the record has of a task, given what each repetition has measured."""
    ratios = {}
    for name in (WIDE, SINGLE):
        pairs = [paired_ratio(one["seconds"][name], one["seconds"][PAIR]) for one in measured]
        ratio: Interval = pairs[0] if len(pairs) == 1 else over_processes([pair.ratio for pair in pairs])
        ratios[f"{PAIR} over {name}"] = ratio._asdict()
    share = statistics.median(one["share"] for one in measured)
    return {"ratios": ratios, "communication_share": share, "repetitions": list(measured)}


def describe(found: Mapping[str, Any]) -> str:
    """Return the ratios of a task and the share of communication, in a line."""
    ratios = [f"{name} {r['ratio']:.2f} ({r['low']:.2f} to {r['high']:.2f})" for name, r in found["ratios"].items()]
    states = ", ".join(sorted({one["state"] for one in found["repetitions"]}))
    share = f"communication {100 * found['communication_share']:.0f} % of a step"
    return f"{found['task']}, {found['setting']}: {'; '.join([*ratios, share])}; {states}"


class Team:
    """The processes of a run, which take blocks of steps when they are asked to."""

    def __init__(self, words: Sequence[str], size: int, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._connections, self._members = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = (theirs, [*words, f"threads={threads}", "device=cpu"], rank, size, self._store.port)
            self._members.append(context.Process(target=be_member, args=arguments))
            self._connections.append(ours)
            process.start_worker(self._members[-1])
            theirs.close()  # so that the end of the process, which has the only copy left, is seen

    def block(self, first: int, steps: int) -> list[Block]:
        """Take step ``first``, which does not count, and then ``steps`` more; return what each process measured."""
        return self._ask((first, steps))

    def end(self) -> list[str]:
        """End the processes, and return the state of each one's contention."""
        return self._ask(None)

    def kill(self) -> None:
        for member in self._members:
            member.kill()
            member.join()

    def _ask(self, question: object) -> list[Any]:
        for connection in self._connections:
            connection.send(question)
        return [connection.recv() for connection in self._connections]


def be_member(connection: Connection, words: Sequence[str], rank: int, size: int, port: int) -> None:
    """Answer the questions of :class:`Team`, in a process of its own."""
    process.follow_parent()
    as_torchrun.become(rank, size, port)
    job = config.job(list(words))
    with joined(lambda: set_up_device(job.config), TIMEOUT_SECONDS) as group:
        timed = Timed(job, group)
        while (question := connection.recv()) is not None:
            connection.send(timed.block(*question))
        connection.send(timed.state())


class Timed:
    """The training step of a team, in one of its processes, and the time that its parts take."""

    def __init__(self, job: config.Job, group: Group | None) -> None:
        device, self._group = set_up_device(job.config), group
        self._stepper = make_stepper(job, device, lambda _: None, group)
        self._contention = Contention(device) if group is None else JointContention(device, group)
        self._seconds: dict[str, float] = defaultdict(float)
        if group is not None:
            self._count_waiting()

    def block(self, first: int, steps: int) -> Block:
        self._step(first)
        self._meet()
        self._seconds.clear()
        start = time.perf_counter()
        with self._contention.watch():
            for step in range(first + 1, first + 1 + steps):
                self._step(step)
            self._meet()
        seconds = (time.perf_counter() - start) / steps
        parts = {name: total / steps for name, total in self._seconds.items()}
        return Block(seconds, parts)

    def state(self) -> str:
        """Return the state of the contention: clear, contended or unknown."""
        if isinstance(self._contention, JointContention):
            self._contention.exchange()
        return str(self._contention.report()["state"])

    def _step(self, step: int) -> None:
        with self._counted("data"):
            batches = self._stepper.task.batches(step, ALL if self._group is None else self._group.chosen)
        self._stepper.take(step, batches, self._counted)

    def _meet(self) -> None:
        if self._group is not None:
            self._group.barrier()

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        """Add the time inside the context to a part."""
        start = time.perf_counter()
        yield
        self._seconds[name] += time.perf_counter() - start

    def _count_waiting(self) -> None:
        """Count the time of all communication of the group."""
        waiting = Group._waiting

        @contextmanager
        def counted(group: Group) -> Iterator[None]:
            with self._counted(COMMUNICATION), waiting(group):
                yield

        Group._waiting = counted  # type: ignore[method-assign]


if __name__ == "__main__":
    check_record.run(main)
