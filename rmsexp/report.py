"""``python -m rmsexp.report RESULTS``: statistics, tables and figures of all runs below a folder, from records alone.

Writes <task>/<setting>/comparison for each setting, and RESULTS/report with one page of all of them.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rmsexp import compare, record
from rmsexp.checks import nearest
from rmsexp.compare import overview, setting_report
from rmsexp.compare.records import timing_records

OVERVIEW = "report"
FEW = 100  # runs


def run(results: Path, task: str | None, setting: str | None) -> list[Path]:
    """Writes everything and returns the paths of the overview.

    Raises: ValueError where there is nothing to report.
    """
    if results.name in ("", ".."):  # a setting is named by its folders
        results = results.absolute()
    print(f"reading {results}", flush=True)
    with _pool(sum(1 for _ in record.find_runs(results))) as pool:
        return _run(results, task, setting, pool)


def _run(results: Path, task: str | None, setting: str | None, pool: Executor) -> list[Path]:
    problems: list[str] = []
    records, timings = compare.load(results, pool), timing_records.load(results, problems)
    if records.runs.empty:
        raise ValueError(f"{results} holds no runs; make some: python -m rmsexp -m norm=ln,rms results={results}")
    settings = records.settings()
    wanted = {folder: some for folder, some in settings.items() if _is(folder.parent, task) and _is(folder, setting)}
    for what, asked, known in (
        ("task", task, {folder.parent.name for folder in settings}),
        ("setting", setting, {folder.name for folder in settings}),
    ):
        if asked and asked not in known:
            raise ValueError(f"{results} has no {what} {asked}{nearest(asked, sorted(known))}")
    if not wanted:
        raise ValueError(f"{results} has no setting {setting} of task {task}")
    written = [setting_report.write(folder, settings, timings, pool) for folder in wanted]
    made = [one.report for one in written]
    problems += [problem for one in made for problem in one.records.problems]
    paths = overview.write(made, timings, problems, results / OVERVIEW)
    for number, (one, drawing) in enumerate(written, 1):
        if drawing:
            drawing.result()
        print(f"{number}/{len(wanted)}  runs: {len(one.records.runs)}  {one.folder}", flush=True)
    for problem in problems:
        print(f"rmsexp: {problem}", file=sys.stderr)
    return paths


def _pool(runs: int) -> Executor:
    """What reads and draws: every core where there is much to do, else a thread: processes take seconds to start."""
    if runs <= FEW:
        return ThreadPoolExecutor(1)
    context = get_context("forkserver")
    context.set_forkserver_preload(["rmsexp.compare.setting_report"])  # imported once for all
    return ProcessPoolExecutor(len(os.sched_getaffinity(0)), context)


def _is(folder: Path, name: str | None) -> bool:
    return name is None or folder.name == name


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rmsexp.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="the root of all records, or any folder of it")
    parser.add_argument("--task", help="this task alone")
    parser.add_argument("--setting", help="this setting alone, by its folder's name, as in small+optim.lr=0.01")
    arguments = parser.parse_args()
    try:
        paths = run(arguments.results.expanduser(), arguments.task, arguments.setting)
    except (ValueError, OSError) as error:
        print(f"rmsexp: {error}", file=sys.stderr)
        return 1
    for path in paths:
        print(f"wrote   {path}")
    print(f"next    open {paths[0]} in a browser")
    return 0


if __name__ == "__main__":
    sys.exit(main())
