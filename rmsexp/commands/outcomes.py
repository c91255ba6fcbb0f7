"""What is shown after runs: how they ended, the curves and tables of their settings, and a command to type next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rmsexp import config
from rmsexp.records import record
from rmsexp.records.states import NOT_STARTED, Past, RefusedError, name_of
from rmsexp.system.command_line import command, config_dir_words, report

if TYPE_CHECKING:
    from rmsexp.work.runner import Outcome

PAPER_NORMS = ("ln", "rms", "none", "prms", "bn", "wn")  # norms that are suggested for the next run, in this order
EAGER_ONLY = ("bn",)  # those without a fused form; asking each norm's config would take half a second


def show(job: config.Job, outcome: Outcome, swept: bool = False) -> None:
    """Print how a run ended, and its last evaluation: the loss and the task's metric on each split.

    ``swept``: whether it is a run of a sweep, whose end names the command that continues it.
    """
    if outcome.status == "failed":
        report(outcome.error)
        return
    if outcome.already:
        longer = "; a larger max_steps continues this one" if outcome.status == "finished" else ""
        print(f"already {outcome.status} at step {outcome.step} (force=true starts a new run{longer})")
        if outcome.notice:
            print(f"note    {outcome.notice}")
    elif outcome.status == "interrupted":
        print(f"interrupted at step {outcome.step}" + f"; {job.again} to continue" * (not swept))
    else:
        reason = f": {outcome.error}" if outcome.error else ""
        print(f"{outcome.status} at step {outcome.step}{reason}")
    folder = record.RunFolder(job.folder)
    rows = folder.read_metrics()[0] if folder.metrics_path.exists() else []
    if evaluations := [row for row in rows if row["split"] != "train"]:
        metric, last = folder.read_run().get("target", {}).get("metric"), evaluations[-1]["step"]
        for row in (row for row in evaluations if row["step"] == last):
            print(f"{row['split']:7} {record.metrics_text(row, metric)} (step {last})")
    print(f"record  {job.folder}")


def value(job: config.Job, outcome: Outcome) -> float:
    """Return the last value of the target's metric on the split on which models are selected; NaN if there is none.

    A run that diverged, or a value that is not finite, is the worst: infinity, or minus infinity if larger is better.
    """
    folder = record.RunFolder(job.folder)
    target = folder.read_run().get("target", {})
    worst = -math.inf if target.get("mode") == "max" else math.inf
    if outcome.status == "diverged":
        return worst
    metric, split = target.get("metric"), target.get("selection")
    values = [row[metric] for row in folder.read_metrics()[0] if row["split"] == split and metric in row]
    return math.nan if not values else worst if values[-1] is None else float(values[-1])


def next_command(job: config.Job, config_dir: str | None) -> str:
    """Return a command that runs the first of ``PAPER_NORMS`` that has no folder in this setting.

    If all have one, the command is a sweep over these norms with three seeds. After a fused run
    it suggests only those with a fused form. All other words, and ``norm.impl=fused``, are those of the job.
    """
    left_out, impl = ("norm=", "norm.", "force="), "norm.impl=fused"
    fused = impl in (word.lstrip("+") for word in job.overrides)
    typed = (word for word in job.overrides if not word.lstrip("+~").startswith(left_out))
    words = [*config_dir_words(config_dir), *typed, *[impl] * fused]
    existing = {path.name for path in job.setting_folder.iterdir() if path.is_dir()}
    norms = [name for name in PAPER_NORMS if not (fused and name in EAGER_ONLY)]
    norm = next((name for name in norms if name + "+impl=fused" * fused not in existing), None)
    if norm is not None:
        return command("rmsexp", *words, f"norm={norm}")
    words = [word for word in words if not word.startswith("seed=")]
    return command("rmsexp", "-m", *words, f"norm={','.join(norms)}", "seed=0,1,2")


def draw(job: config.Job) -> Path | None:
    """Redraw the figures of a job's setting and return the path of ``curves.png``.

    Return None if no run has metrics yet, or if they cannot be drawn, which is reported.
    """
    from rmsexp.report import draw as draw_setting
    from rmsexp.report.setting_report import NoMetricsError

    try:
        return draw_setting(config.expanded(job.config.results), job.config.task, job.setting) / "curves.png"
    except NoMetricsError:
        return None
    except (OSError, ValueError) as error:
        report(f"the curves cannot be drawn: {error}")
        return None


def show_setting(job: config.Job, config_dir: str | None, quiet: bool) -> None:
    """Draw the setting of a single run, and print where and, unless it shall be ``quiet``, a command to type next."""
    curves = draw(job)
    if not quiet:
        if curves is not None:
            print(f"curves  {curves}")
        print(f"next    {next_command(job, config_dir)}")


def show_settings(jobs: Sequence[config.Job]) -> None:
    """Draw each setting of a sweep, and print its table."""
    from rich.console import Console

    from rmsexp.report import load
    from rmsexp.report.tables import summary

    console = Console()
    for job in {job.setting_folder: job for job in jobs}.values():
        curves = draw(job)
        if curves is not None:
            records = load(job.setting_folder)
            console.print(summary.for_terminal(summary.table(records)))
            console.print(f"curves  {curves}", soft_wrap=True)


def list_unfinished(jobs: Sequence[config.Job]) -> int:
    """List the runs of a sweep that did not finish; return 1 if one neither finished nor diverged, else 0."""
    unfinished = {job.folder: result for job in jobs if (result := _result(job))[0] != "finished"}
    for folder, (status, reason) in unfinished.items():
        print(f"{status}: {folder}: {'another process is doing it' if status == 'running' else reason}")
    failed = any(status != "diverged" for status, _ in unfinished.values())
    if failed:
        print(f"{jobs[0].again} to do the runs that are missing; it skips those that have ended")
    return int(failed)


def counts(jobs: Sequence[config.Job]) -> str:
    """Return the number of runs in each state, such as "5 finished, 2 interrupted, 11 not started"."""
    found = Counter(_result(job)[0] for job in jobs)
    return ", ".join(f"{number} {state}" for state, number in found.items())


def _result(job: config.Job) -> tuple[str, str | None]:
    """Return the state of a job's run, and why it has not finished.

    A job whose folder holds another run was refused, and so has failed.
    """
    try:
        past = Past.read(record.RunFolder(job.folder))
        past.refuse_other(run=name_of(job), config=job.resolved)
        if past.status is None:
            return NOT_STARTED, "no status"
        if past.status["status"] in record.ENDED and not past.has_ended(job.config.max_steps):
            return "interrupted", f"finished at step {past.step} of max_steps={job.config.max_steps}, and not continued"
        return past.status["status"], past.status.get("error")
    except (RefusedError, OSError) as error:
        return "failed", str(error)
