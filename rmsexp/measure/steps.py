"""Interleaved timing of one task's training steps with several norms, in this process."""

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar

import torch

from rmsexp import tasks
from rmsexp.config import Job
from rmsexp.config.timing import TimingConfig
from rmsexp.measure.interleaved import Budget, InterleavedTimer, Round, balanced
from rmsexp.models.recurrent import impl_of
from rmsexp.rules.ratios import FEWEST_ROUNDS, paired_ratio
from rmsexp.system.machine_lock import Report
from rmsexp.task import Dataset
from rmsexp.train import provenance
from rmsexp.train.device import set_up_device
from rmsexp.train.randomness import seed_of
from rmsexp.train.step import Stepper

PARTS_BLOCKS = 5  # number of blocks of each contestant in which the parts of a step are timed

T = TypeVar("T")


class Contestants(NamedTuple):
    """A timer, the series and implementations of its contestants (in the same order), and the data of their batches.

    ``workloads``: by series, a digest of what is timed (:func:`rmsexp.train.provenance.workload`).
    """

    timer: InterleavedTimer
    impls: dict[str, str]
    dataset: Dataset
    workloads: dict[str, str]


def measure(
    jobs: Mapping[str, Job], options: TimingConfig, number: int, order_seed: int, budget: Budget, report: Report
) -> dict[str, Any]:
    """Time the jobs in this process, and return what the record has from it.

    Args:
        number: the number of this process, from 0 on, among those that measure the same jobs. The first one also
            measures the parts of a step and its peak memory, after the rounds.
        order_seed: the seed of the orders in which the models are built, balanced over the processes, and timed in
            rounds. It is the same for all processes of a record.
        budget: the seconds of this process, from its start on.

    Returns: ``dataset``; ``process``, an entry of the record's ``processes``; and ``series``, entries of the record's
        ``series``, which only the first process has.

    Raises: ValueError if this machine lacks the config's device; data.DataError if data are missing or damaged.
    """
    first = next(iter(jobs.values()))
    device = set_up_device(first.config)
    made = make_contestants(in_order(jobs, number, order_seed), device, seed_of(order_seed, number))
    return take_times(made, options, number, budget, report)


def in_order(contestants: Mapping[str, T], number: int, order_seed: int) -> dict[str, T]:
    """Return ``contestants`` in the order in which process ``number`` builds them."""
    names = list(contestants)
    return {names[i]: contestants[names[i]] for i in balanced(len(names), number, order_seed, "process")}


def take_times(made: Contestants, options: TimingConfig, number: int, budget: Budget, report: Report) -> dict[str, Any]:
    """Time contestants, and return what :func:`measure` does."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # silences the profiler that measures peak memory
    timer, impls, dataset, workloads = made
    timer.warm_up()
    session, spent = provenance.session(timer.device, 0), budget.watch.seconds
    # The later processes have less time in return, so that all processes measure about equally many rounds.
    blocks_after = 0 if number else (PARTS_BLOCKS + 1) / options.processes
    rounds, stopped = measure_rounds(timer.rounds(), list(impls), options, budget, report, blocks_after)
    series = []
    if not number:
        measured = zip(impls.items(), timer.parts(PARTS_BLOCKS), timer.peak_bytes(), strict=True)
        for (name, impl), parts, peak in measured:
            entry = {"series": name, "impl": impl, "workload": workloads[name]}
            series.append(entry | {"parts": parts, "peak_bytes": peak})
    return {
        "dataset": asdict(dataset),
        "process": {
            "session": session | {"contention": timer.contention.report()},
            "stopped": stopped,
            "seconds_before_rounds": round(spent, 1),
            "steps_per_block": timer.steps_per_block,
            "data_seconds": statistics.median(timed.data_seconds for timed in rounds),
            "series": list(impls),
            "seconds": {
                name: [round(value, 12) for value in seconds]
                for name, seconds in zip(impls, zip(*(timed.seconds for timed in rounds), strict=True), strict=True)
            },
        },
        "series": series,
    }


def make_contestants(jobs: Mapping[str, Job], device: torch.device, order_seed: int) -> Contestants:
    """Make a model and an optimiser for each job; all use the batches of the first job's task."""
    steppers = {name: make_stepper(job, device) for name, job in jobs.items()}
    impls = {name: impl_of(job.norm, steppers[name].model) for name, job in jobs.items()}
    workloads = {name: provenance.workload(job) for name, job in jobs.items()}
    source = next(iter(steppers.values())).task
    timer = InterleavedTimer([stepper.take for stepper in steppers.values()], source.batches, device, order_seed)
    return Contestants(timer, impls, source.dataset, workloads)


def make_stepper(job: Job, device: torch.device) -> Stepper:
    """Load the data of a job's task, and return the training step of a new model with its optimiser."""
    task = tasks.make(job, device)
    task.prepare(lambda _: None)
    model = tasks.build(task, job)
    task.initialise(model)
    if job.config.compile:
        model.compile(dynamic=True)
    return Stepper(job.config, task, model, device)


def measure_rounds(
    rounds: Iterable[Round],
    series: Sequence[str],
    options: TimingConfig,
    budget: Budget,
    report: Report,
    blocks_after: float,
) -> tuple[list[Round], str]:
    """Return the timed rounds, and why there are no more: "narrow enough", as all intervals are, or "budget spent".

    The width of an interval is taken relative to its ratio. Intervals are narrow enough only after ``FEWEST_ROUNDS``
    rounds; a spent budget stops from two rounds on. The widths are checked ever less often: checks after each round
    would stop at an interval that is narrow by chance.

    ``blocks_after``: number of blocks of each contestant that will follow, for which some of the budget is left.
    """
    timed: list[Round] = []
    begin, next_check = budget.left, FEWEST_ROUNDS
    for latest in rounds:
        timed.append(latest)
        seconds_per_round = (begin - budget.left) / len(timed)
        spent = budget.left < (1 + blocks_after) * seconds_per_round and len(timed) > 1
        if len(timed) < next_check and not spent:
            continue
        next_check = len(timed) + max(4, len(timed) // 4)
        seconds = dict(zip(series, zip(*(each.seconds for each in timed), strict=True), strict=True))
        ratios = {name: paired_ratio(values, seconds[options.reference]) for name, values in seconds.items()}
        widest = max((ratio.high - ratio.low) / ratio.ratio for ratio in ratios.values())
        listed = ", ".join(f"{name} {ratios[name].ratio:.3f}" for name in sorted(ratios) if name != options.reference)
        report(f"{len(timed)} rounds, {listed}; widest interval {widest:.3f} (target {options.target_width:g})")
        if widest <= options.target_width and len(timed) >= FEWEST_ROUNDS:
            return timed, "narrow enough"
        if spent:
            return timed, "budget spent"
    raise AssertionError("rounds do not end")
