"""Interleaved timing in several fresh processes, one after the other.

The ratio of two times depends on where a process has its memory and in which order it built its models, so ratios of
two processes differ by more than their intervals within each process. A record therefore has several processes.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from rmsexp import tasks
from rmsexp.config import Job
from rmsexp.config.timing import TimingConfig
from rmsexp.measure import own_steps, steps
from rmsexp.measure.interleaved import Budget
from rmsexp.measure.new_process import ProcessError, Work, in_new_process
from rmsexp.records.frames import comparable, timing_records
from rmsexp.system import atomic, process
from rmsexp.system.clock import Stopwatch
from rmsexp.system.machine_lock import Report, measuring
from rmsexp.train import provenance

Timed = Job | own_steps.OwnSteps


def record(
    jobs: Mapping[str, Timed],
    options: TimingConfig,
    report: Report,
    typed: Sequence[str],
    show: Callable[[Path], object],
) -> None:
    """Time the jobs (:func:`measure`) and write the record.

    Data that are not prepared yet, which may take minutes, are prepared before, and are not part of the budget.
    If it is stopped or fails, the record has the processes that have measured; without any, there is no record.

    Args:
        typed: the words of the command line, for the record.
        show: is called with the folder of the record.

    Raises: as :func:`measure`; Interrupted if a signal stops it; OSError if the record cannot be written.
    """
    first = next(iter(jobs.values()))
    setting = first.setting_folder
    atomic.make_writable(setting / timing_records.FOLDER)  # before measuring
    content = None
    try:
        with process.Interrupt().install():
            if isinstance(first, Job):
                tasks.make(first, torch.device("cpu")).prepare(report)
            for content in measure(jobs, options, report):  # noqa: B007
                pass
    finally:  # also after an error
        if content is not None:
            show(timing_records.write(content, setting, typed))


def measure(
    jobs: Mapping[str, Timed], options: TimingConfig, report: Report, work: Work | None = None
) -> Iterator[dict[str, Any]]:
    """Time the jobs in fresh processes; after each of them yield the content of the record so far.

    Its ``stopped`` is "interrupted" until the last process has measured. Each process gets an equal share of the budget
    that is left. None is started whose models would hardly be ready when the budget ends. Meanwhile campaign workers on
    this machine pause, and other measurements wait.

    Args:
        jobs: the jobs, by series: the norm's name with its changed options.
        work: what a process does, importable there; by default it times the steps of jobs, or a user's own.

    Raises: ProcessError if a process fails, or differs from the first in its code, versions or machine.
    """
    groups = comparable.grouped({series: job.impl for series, job in jobs.items()}, options.reference)
    planned = [(number, group) for number in range(options.processes) for group in groups]
    first, seconds = next(iter(jobs.values())), options.seconds(len(groups))
    chosen: Work = work or (steps.measure if isinstance(first, Job) else own_steps.measure)
    heading = f"timing task={first.config.task} scale={first.setting}: {', '.join(jobs)}"
    report(f"{heading}; processes: {len(planned)}, budget: {seconds:.0f} s")
    answers: list[dict[str, Any]] = []
    order_seed = secrets.randbits(32)  # random, because orders that all records share would bias all of them alike
    with measuring(report):
        budget = Budget(Stopwatch(), seconds)
        for begun, (number, group) in enumerate(planned):
            name = f"process {begun + 1} of {len(planned)}"
            share = Budget(Stopwatch(), budget.left / (len(planned) - begun))
            selected = {series: jobs[series] for series in group}
            arguments = (selected, options, number, order_seed, share)
            here = first.impl == own_steps.HERE
            answer = chosen(*arguments, report) if here else in_new_process(name, chosen, arguments, report)
            answers.append(answer)
            if changed := provenance.changed(*(each["process"]["session"] for each in (answers[0], answer))):
                raise ProcessError(f"{name} does not count, because it differs from the first in: {', '.join(changed)}")
            least = min(answer["process"]["seconds_before_rounds"] for answer in answers)
            ended = len(answers) == len(planned) or budget.left < least
            reasons = {answer["process"]["stopped"] for answer in answers}
            complete = len(answers) == len(planned) and len(reasons) == 1
            stopped = (reasons.pop() if complete else "budget spent") if ended else "interrupted"
            lost = set(jobs).difference(*(answer["process"]["series"] for answer in answers))
            if ended and lost:
                stopped += f" before {', '.join(sorted(lost))}"
            content = _content(jobs, options, order_seed, answers, stopped)
            yield content  # first of all, so that a signal from here on does not lose it
            left = f"{max(0, budget.left):.0f} of {seconds:.0f} s left"
            found = pd.DataFrame(timing_records.rows(content, ""))
            report(f"{name} has measured, {left}; {timing_records.estimates(found)}")
            if ended:
                return


def _content(
    jobs: Mapping[str, Timed], options: TimingConfig, order_seed: int, answers: Sequence[dict[str, Any]], stopped: str
) -> dict[str, Any]:
    """Return the content of the record of the processes that have measured."""
    first = next(iter(jobs.values()))
    measured = {entry["series"]: entry for answer in reversed(answers) for entry in answer["series"]}
    return {
        "format": 2,
        **{key: getattr(first.config, key) for key in ("task", "scale", "seed", "precision")},
        "setting": first.setting,
        "kind": "steps",
        "reference": options.reference,
        "options": asdict(options),
        "order_seed": order_seed,
        "stopped": stopped,
        "dataset": answers[0]["dataset"],
        "processes": [answer["process"] for answer in answers],
        "series": [measured[name] for name in jobs if name in measured],
    }
