"""``python -m rmsexp.report RESULTS``: statistics, tables and figures of all runs below a folder, from records alone.

Writes only into the folder of the report: one page of all settings, and a folder of figures and tables for each of
them. RESULTS may be the folder of a task or setting, such as results/cifar10/demo. Committed records
(RESULTS/reference) are left out, unless RESULTS is their folder.
"""

import gc
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pandas as pd

from rmsexp import config
from rmsexp.campaign.results import load_all as load_campaigns
from rmsexp.records import record
from rmsexp.records.frames import timing_records
from rmsexp.records.frames.load import Records, load
from rmsexp.report import campaign_report, setting_report
from rmsexp.report.page import html
from rmsexp.report.setting_report import SettingReport
from rmsexp.system import cores
from rmsexp.system.command_line import Parser, command, entry_point, value_word

OVERVIEW = "report"
MANY = 8  # settings; fewer are written sooner by one process


def run(results: Path, out: Path | None = None) -> list[Path]:
    """Write a report of each setting below ``results``, and the overview, into ``out`` (``<results>/report``).

    A setting has runs, timing records or both. Settings that have only pilot and tuning runs of a campaign below
    ``results`` have no report.

    Return the paths of the overview: first the HTML page, then other texts and PNG figures.

    Raises: ValueError if there are neither runs nor timing records.
    """
    runs = list(record.find_runs(results))
    # paths such as "..", or a setting's folder "demo", lack folder names that tasks and settings have
    if results.name in ("", "..") or any(len(run.parts) < 4 for run in runs):  # task, setting, series, seed
        results = Path(os.path.abspath(results))  # noqa: PTH100  # without ".."; the names of links stay
    print(f"reading {results}", flush=True)
    if line := record.left_out(results, "rmsexp.report"):
        print(line, flush=True)
    return _write(results, out or results / OVERVIEW)


def _write(results: Path, out: Path) -> list[Path]:
    problems = list[str]()
    records, timings = load(results), timing_records.load(results, problems)
    # the records of each setting with runs or timings, by its folder; without runs, its records are empty
    found = {Path(folder).parents[1]: records.only([]) for folder in timings["folder"]} | records.settings()
    settings = dict(sorted(found.items(), key=lambda item: str(item[0])))
    if not settings:
        raise ValueError(
            f"{results} contains neither runs nor timings; train: "
            + command("rmsexp", "-m", "norm=ln,rms", value_word("results", results))
        )
    campaigns = load_campaigns(results, problems)
    gc.freeze()  # the records live to the end: no collection has to walk through them
    tuning = [path for path in settings if campaign_report.is_tuning(path, settings[path], campaigns)]
    problems += [problem for path in tuning for problem in settings[path].problems]
    selected = [path for path in settings if path not in tuning]
    timings_of = dict(list(timings.groupby(timings["folder"].map(lambda folder: Path(folder).parents[1]))))
    jobs = []
    for folder in selected:
        root = folder.parents[1]
        place = out / (root.relative_to(results) if root.is_relative_to(results) else "") / folder.parent.name
        own = timings_of.get(folder, timings.iloc[:0])
        jobs.append((folder, settings[folder], own, place / folder.name))
    # forked processes share the records, which would take long to send to others
    workers = cores.threads() if len(jobs) >= MANY and "fork" in multiprocessing.get_all_start_methods() else 1
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) if workers > 1 else nullcontext() as pool:
        written = (map if pool is None else pool.map)(_write_setting, jobs)
        verdicts, failed = None, list[str]()
        try:
            verdicts = campaign_report.write(campaigns, records, timings, len(tuning), out) if campaigns else None
        except Exception as error:  # the settings are reported without verdicts
            names = ", ".join(str(campaign.path) for campaign in campaigns)
            failed.append(f"{names}: the verdicts cannot be reported: {error!r}")
        outcomes = list(written)
    reports = [each for each in outcomes if isinstance(each, SettingReport)]
    problems += [problem for each in outcomes if isinstance(each, list) for problem in each]
    problems += [problem for report in reports for problem in report.records.problems] + failed
    paths = html.write(reports, verdicts, timings, problems, out)
    for number, report in enumerate(reports, 1):
        print(f"{number}/{len(selected)}  runs: {len(report.records.runs)}  {report.folder}", flush=True)
    for problem in problems:
        print(f"rmsexp: {problem}", file=sys.stderr)
    return paths


def _write_setting(job: tuple[Path, Records, pd.DataFrame, Path]) -> SettingReport | list[str]:
    """Write the report of a setting; if that fails, return what is wrong, so that the other settings are reported."""
    try:
        return setting_report.write(*job)
    except Exception as error:
        return [*job[1].problems, f"{job[0]}: this setting is not reported: {error!r}"]


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m rmsexp.report", description=__doc__)
    parser.add_argument("results", type=Path, help="root folder of all records, or any folder below it")
    parser.add_argument("--out", type=Path, help="folder of the report (default: RESULTS/report)")
    arguments = parser.parse_args(argv)
    out = config.expanded(arguments.out) if arguments.out else None
    paths = run(config.results_folder(arguments.results), out)
    for path in paths:
        print(f"wrote   {path}")
    print(f"next    open {paths[0]} in a browser")
    return 0
