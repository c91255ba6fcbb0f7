"""Interleaved timing of one task's training steps, or of its norm layers alone, with several norms."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch

from rmsexp import tasks
from rmsexp.compare.records.ratios import Interval, paired_ratio
from rmsexp.config import Job
from rmsexp.machine_lock import measuring
from rmsexp.measure import replay
from rmsexp.measure.interleaved import Contestant, InterleavedTimer, Round
from rmsexp.measure.options import TimingConfig
from rmsexp.train import provenance
from rmsexp.train.clock import Stopwatch
from rmsexp.train.device import compile_model, set_up_device
from rmsexp.train.randomness import standard_normal
from rmsexp.train.step import Batches, Settings, Stepper
from rmsexp.train.task import Dataset

# least number of rounds, unless the budget is spent before; intervals from fewer rounds are unreliable
FEWEST_ROUNDS = 20
PARTS_BLOCKS = 9  # number of blocks of each contestant in which the parts of a step are timed
# steps whose calls of norm layers are replayed; spread out, because neighbouring batches may have similar lengths
REPLAYED_STEPS = range(0, 63, 7)

Report = Callable[[str], None]


class Contestants(NamedTuple):
    """A timer, the jobs of its contestants (by series, in the same order), and the data set of their batches."""

    timer: InterleavedTimer
    jobs: dict[str, Job]
    dataset: Dataset


class Measurement(NamedTuple):
    """All rounds, the ratio of each series' time to the reference's, and why the measuring stopped."""

    rounds: list[Round]
    ratios: dict[str, Interval]
    stopped: str


def measure(jobs: Mapping[str, Job], options: TimingConfig, report: Report) -> dict[str, Any]:
    """Time the jobs and return the content of the record. ``jobs``: by series, the norm with its changed options.

    Meanwhile campaign workers on this machine pause, and other measurements wait.

    Raises: ValueError if this machine lacks the config's device, or if norm layers alone are timed and the reference
    has none; data.DataError if data are missing or damaged.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # silences the profiler that measures peak memory
    job = next(iter(jobs.values()))
    cfg = job.config
    device = set_up_device(cfg)
    report(f"timing task={cfg.task} scale={job.setting}: {', '.join(jobs)}")
    timer, jobs, dataset = make_contestants(jobs, options, device, report)
    with measuring(report):
        timer.warm_up()
        session = provenance.session(device, 0)
        measurement = measure_ratios(timer, list(jobs), options, report)
        series = _series(timer, jobs, measurement.rounds)
    return {
        "format": 1,
        **{key: getattr(cfg, key) for key in ("task", "scale", "seed", "precision")},
        "setting": job.setting,
        "kind": "layers" if options.layers else "steps",
        "reference": options.reference,
        "options": asdict(options),
        "stopped": measurement.stopped,
        "dataset": asdict(dataset),
        "session": session | {"contention": timer.contention.report()},
        "steps_per_block": timer.steps_per_block,
        "data_seconds": statistics.median(timed.data_seconds for timed in measurement.rounds),
        "series": series,
    }


def _series(timer: InterleavedTimer, jobs: Mapping[str, Job], rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return the record's entry of each series. A step's parts and peak memory are measured here, after the rounds."""
    return [
        {
            "series": name,
            "impl": job.norm.effective_impl,
            "seconds": [round(value, 7) for value in seconds],
            "parts": parts,
            "peak_bytes": peak,
        }
        for (name, job), seconds, parts, peak in zip(
            jobs.items(),
            zip(*(timed.seconds for timed in rounds), strict=True),
            timer.parts(PARTS_BLOCKS),
            timer.peak_bytes(),
            strict=True,
        )
    ]


def make_contestants(
    jobs: Mapping[str, Job], options: TimingConfig, device: torch.device, report: Report
) -> Contestants:
    """Make a model and an optimiser for each job; all use the batches of the first job's task.

    With ``options.layers``, jobs without norm layers are left out.

    Raises: ValueError if the reference is left out.
    """
    timed: dict[str, Job] = {}
    contestants: list[Contestant] = []
    source: Any = None
    for name, job in jobs.items():
        stepper = make_stepper(job, device, report if source is None else lambda _: None)
        source = source or stepper.task
        contestant: Contestant | None = _replay(stepper, source.batches) if options.layers else stepper
        if contestant is None:
            report(f"{name} has no norm layers and is left out")
            continue
        timed[name] = job
        contestants.append(contestant)
    if options.reference not in timed:
        raise ValueError(f"timing.reference={options.reference} has no norm layers to compare with")
    seed = next(iter(jobs.values())).config.seed
    return Contestants(InterleavedTimer(contestants, source.batches, device, seed), timed, source.dataset)


def make_stepper(job: Job, device: torch.device, report: Report) -> Stepper:
    """Load the data of a job's task, and return the training step of a new model with its optimiser."""
    cfg = job.config
    task = tasks.make(job, device)
    task.prepare(report)
    model = task.build(job.norm)
    task.initialise(model)
    compile_model(model, cfg)
    return Stepper(task, model, task.optimizer(model), cfg.schedule, Settings.of(cfg, device))


def _replay(stepper: Stepper, batches: Callable[[int], Batches]) -> replay.Replay | None:
    """Take the steps ``REPLAYED_STEPS``; return a replay of their norm layers' calls, or None if a step has none."""
    calls = []
    for step in REPLAYED_STEPS:
        with replay.record_calls(stepper.model) as calls_of_step:
            stepper.take(step, batches(step))
        calls.append(calls_of_step)
    if not all(calls):
        return None
    seed, device = stepper.settings.seed, stepper.settings.device
    return replay.Replay(calls, lambda shape, dtype: standard_normal(shape, seed, "values", device=device).to(dtype))


def measure_ratios(
    timer: InterleavedTimer, series: Sequence[str], options: TimingConfig, report: Report
) -> Measurement:
    """Time rounds until the intervals of all ratios are narrow enough or the budget is spent.

    Intervals are narrow enough only after ``FEWEST_ROUNDS`` rounds; a spent budget stops from two rounds on. The widths
    are checked ever less often: checks after each round would stop at an interval that is narrow by chance.
    """
    watch, next_check = Stopwatch(), FEWEST_ROUNDS
    rounds: list[Round] = []
    for timed in timer.rounds():
        rounds.append(timed)
        spent = watch.seconds > options.budget and len(rounds) > 1
        if len(rounds) < next_check and not spent:
            continue
        next_check = len(rounds) + max(4, len(rounds) // 4)
        ratios = _ratios(series, rounds, options.reference)
        widest = max(ratio.width for ratio in ratios.values())
        report(
            f"{len(rounds)} rounds, {watch.seconds:.0f} of {options.budget:.0f} s: "
            f"{', '.join(f'{name} {ratio.ratio:.3f}' for name, ratio in ratios.items())}; "
            f"widest interval {widest:.3f} (target {options.target_width:g})"
        )
        if widest <= options.target_width and len(rounds) >= FEWEST_ROUNDS:
            return Measurement(rounds, ratios, "narrow enough")
        if spent:
            return Measurement(rounds, ratios, "budget spent")
    raise AssertionError("rounds do not end")


def _ratios(series: Sequence[str], rounds: Sequence[Round], reference: str) -> dict[str, Interval]:
    seconds = dict(zip(series, zip(*(timed.seconds for timed in rounds), strict=True), strict=True))
    return {name: paired_ratio(values, seconds[reference]) for name, values in seconds.items()}
