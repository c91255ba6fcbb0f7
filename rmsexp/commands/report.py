"""``python -m rmsexp.report RESULTS``: statistics, tables and figures of all runs below a folder, from records alone.

Writes only into the folder of the report: one page of all settings, and a folder of figures and tables for each of
them. Committed records (RESULTS/reference) are left out, unless RESULTS is their folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rmsexp import config
from rmsexp.campaign.results import load_all as load_campaigns
from rmsexp.records import record
from rmsexp.records.frames import timing_records
from rmsexp.records.frames.load import Records, load
from rmsexp.report import campaign_report, setting_report
from rmsexp.report.page import html
from rmsexp.system.checks import nearest
from rmsexp.system.command_line import Parser, command, entry_point, value_word

OVERVIEW = "report"
COMMITTED = ("results", record.REFERENCE)  # the end of the path of committed records


def run(results: Path, task: str | None = None, setting: str | None = None, out: Path | None = None) -> list[Path]:
    """Write a report of each setting below ``results``, and the overview, into ``out`` (:func:`report_folder`).

    A setting has runs, timing records or both. Settings that have only pilot and tuning runs of campaigns have no
    report, unless ``setting`` is given.

    Return the paths of the overview: first the HTML page, then other texts and PNG figures. ``task``, ``setting``: if
    given, only settings with these names are reported.

    Raises: ValueError if there are neither runs nor timing records, or no setting has these names.
    """
    runs = list(record.find_runs(results))
    # paths such as "..", or a setting's folder "demo", lack folder names that tasks and settings have
    if results.name in ("", "..") or any(len(run.parts) < 4 for run in runs):  # task, setting, series, seed
        results = Path(os.path.abspath(results))  # noqa: PTH100  # without ".."; the names of links stay
    print(f"reading {results}", flush=True)
    if line := record.left_out(results, "rmsexp.report"):
        print(line, flush=True)
    return _write(results, task, setting, out or report_folder(results))


def report_folder(results: Path) -> Path:
    """Return the folder of the report of ``results``: ``<results>/report``.

    Committed files are not replaced: the report of ``<results>/reference``, or of a folder below it, is in
    ``<results>/report/reference``.
    """
    for folder in (results, *results.parents, *results.absolute().parents):
        if folder.parts[-2:] == COMMITTED:
            return folder.parent / OVERVIEW / record.REFERENCE
    return results / OVERVIEW


def _write(results: Path, task: str | None, setting: str | None, out: Path) -> list[Path]:
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
    selected = _select(settings, results, task, setting)
    campaigns = [campaign for campaign in load_campaigns(results, problems) if task in (None, campaign.task)]
    own = [] if setting else selected
    tuning = [path for path in own if campaign_report.is_tuning(path, settings[path], campaigns)]
    problems += [problem for path in tuning for problem in settings[path].problems]
    selected = [path for path in selected if path not in tuning]
    families = setting_report.families(settings)
    reports = []
    for folder in selected:
        root = folder.parents[1]
        place = out / (root.relative_to(results) if root.is_relative_to(results) else "") / folder.parent.name
        try:
            family = families.get(folder, {})
            reports.append(setting_report.write(folder, settings[folder], family, timings, place / folder.name))
        except Exception as error:  # the other settings are reported
            problems += [*settings[folder].problems, f"{folder}: this setting is not reported: {error!r}"]
    problems += [problem for report in reports for problem in report.records.problems]
    try:
        verdicts = campaign_report.write(campaigns, records, timings, len(tuning), out) if campaigns else None
    except Exception as error:  # the settings are reported without verdicts
        verdicts, names = None, ", ".join(str(campaign.path) for campaign in campaigns)
        problems.append(f"{names}: the verdicts cannot be reported: {error!r}")
    if task is not None:
        timings = timings[timings["task"] == task]
    paths = html.write(reports, verdicts, timings, problems, out)
    for number, report in enumerate(reports, 1):
        print(f"{number}/{len(selected)}  runs: {len(report.records.runs)}  {report.folder}", flush=True)
    for problem in problems:
        print(f"rmsexp: {problem}", file=sys.stderr)
    return paths


def _select(settings: dict[Path, Records], results: Path, task: str | None, setting: str | None) -> list[Path]:
    """Return the folders of the settings with these names; None stands for any. Raises: ValueError for none."""
    for kind, name, known in (
        ("task", task, {folder.parent.name for folder in settings}),
        ("setting", setting, {folder.name for folder in settings}),
    ):
        if name and name not in known:
            raise ValueError(f"{results} has no {kind} {name}{nearest(name, sorted(known))}")
    selected = [folder for folder in settings if task in (None, folder.parent.name) and setting in (None, folder.name)]
    if not selected:
        raise ValueError(f"{results} has no setting {setting} of task {task}")
    return selected


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m rmsexp.report", description=__doc__)
    parser.add_argument("results", type=Path, help="root folder of all records, or any folder below it")
    parser.add_argument("--task", help="report only settings of this task")
    parser.add_argument("--setting", help="report only settings of this name, such as small+optim.lr=0.01")
    parser.add_argument("--out", type=Path, help="folder of the report (default: RESULTS/report)")
    parser.add_config_dir("has no effect: a report reads no configs")
    arguments = parser.parse_args(argv)
    out = config.expanded(arguments.out) if arguments.out else None
    paths = run(config.results_folder(arguments.results), arguments.task, arguments.setting, out)
    for path in paths:
        print(f"wrote   {path}")
    print(f"next    open {paths[0]} in a browser")
    return 0
