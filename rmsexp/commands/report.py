"""``python -m rmsexp.report RESULTS...``: statistics, tables and figures of all runs below folders, from records alone.

Writes only into the folder of the report: one page of all settings, and a folder of figures and tables for each of
them. RESULTS may be the folder of a task or setting, such as results/cifar10/demo; several folders have one report.
Committed records (RESULTS/reference) are left out, unless RESULTS is their folder.
"""

import gc
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, get_args

import pandas as pd

from rmsexp import config
from rmsexp.campaign.results import load_all as load_campaigns
from rmsexp.config.schema import WandbConfig
from rmsexp.records import record
from rmsexp.records.frames import timing_records
from rmsexp.records.frames.load import Records, load
from rmsexp.report import campaign_report, setting_report
from rmsexp.report.campaign_report import CampaignReport
from rmsexp.report.page import html
from rmsexp.report.setting_report import SettingReport
from rmsexp.system import cores
from rmsexp.system.command_line import Parser, brief, command, entry_point, inform, value_word

WandbMode = Literal["offline", "online"]
MANY = 8  # settings; fewer are written sooner by one process


@pd.option_context("mode.string_storage", "python")  # tables are read value by value, which takes long from Arrow
def run(*folders: Path, out: Path | None = None, wandb: WandbMode | None = None) -> list[Path]:
    """Write a report of each setting below ``folders``, and the overview, into ``out`` (report in the first of them).

    A setting has runs, timing records or both. Settings whose runs all belong to a campaign below ``folders``, as pilot
    or tuning runs or for a stable range, have no report. ``wandb``: the mode in which Weights & Biases gets tables and
    figures, too; None: it gets nothing.

    Return the paths of the overview: first the HTML page, then other texts and PNG figures.

    Raises: ValueError if one of ``folders`` has neither runs nor timing records.
    """
    first, *others = folders
    # paths such as "..", or a setting's folder "demo", lack folder names that tasks and settings have
    parts = [len(run.parts) for run in record.find_runs(first)]
    if others or first.name in ("", "..") or min(parts, default=4) < 4:  # task, setting, series, seed
        folders = tuple(Path(os.path.abspath(folder)) for folder in folders)  # noqa: PTH100  # the names of links stay
    for folder in folders:
        print(f"reading {folder}", flush=True)
        if line := record.left_out(folder, "rmsexp.report"):
            print(line, flush=True)
    return _write(folders, out or folders[0] / "report", wandb)


def _write(folders: Sequence[Path], out: Path, wandb: WandbMode | None) -> list[Path]:
    problems = list[str]()
    records, timings = load(*folders), timing_records.load(*folders, problems=problems)
    # the records of each setting with runs or timings, by its folder; without runs, its records are empty
    found = {Path(folder).parents[1]: records.only([]) for folder in timings["folder"]} | records.settings()
    settings = dict(sorted(found.items(), key=lambda item: str(item[0])))
    paths = [Path(path) for path in (*records.runs["folder"], *timings["folder"])]
    for folder in folders:
        if not any(path.is_relative_to(folder) for path in paths):
            raise ValueError(
                f"{folder} contains neither runs nor timings; train: "
                + command("rmsexp", "-m", "norm=ln,rms", value_word("results", folder))
            )
    campaigns = load_campaigns(*folders, problems=problems)
    gc.freeze()  # the records live to the end: no collection has to walk through them
    others = {f"{each.root}/{job.folder}" for each in campaigns for job in each.jobs if not each.compares(job)}
    # settings with such runs alone have no report of their own
    left_out = [path for path, own in settings.items() if len(own.runs) and others.issuperset(own.runs["folder"])]
    problems += [problem for path in left_out for problem in settings[path].problems]
    selected = [path for path in settings if path not in left_out]
    timings_of = dict(list(timings.groupby(timings["folder"].map(lambda folder: Path(folder).parents[1]))))
    jobs, common = [], Path(os.path.commonpath(folders))
    for folder in selected:
        root = folder.parents[1]
        place = out / (root.relative_to(common) if root.is_relative_to(common) else "") / folder.parent.name
        own = timings_of.get(folder, timings.iloc[:0])
        jobs.append((folder, settings[folder], own, place / folder.name))
    # forked processes share the records, which would take long to send to others
    workers = cores.threads() if len(jobs) >= MANY and "fork" in multiprocessing.get_all_start_methods() else 1
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) if workers > 1 else nullcontext() as pool:
        written = (map if pool is None else pool.map)(_write_setting, jobs)
        verdicts, failed = None, list[str]()
        try:
            verdicts = campaign_report.write(campaigns, records, timings, len(left_out), out) if campaigns else None
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
        inform(f"rmsexp: {brief(problem)}")
    if wandb is not None:
        _log_to_wandb(wandb, out, verdicts, [*paths, *(report.folder / "curves.png" for report in reports)])
    return paths


def _log_to_wandb(mode: WandbMode, out: Path, verdicts: CampaignReport | None, paths: Sequence[Path]) -> None:
    """Log the summary, the verdicts and the figures as a run of the type "report", whose files are in ``out``."""
    import wandb

    tables = {"summary": pd.read_csv(out / "summary.csv")}
    if verdicts is not None:
        tables["verdicts"] = verdicts.verdicts
    figures = [path for path in paths if path.suffix == ".png" and path.exists()]
    project = os.environ.get("WANDB_PROJECT", WandbConfig.project)
    silent = wandb.Settings(silent=True)
    with wandb.init(project=project, job_type="report", mode=mode, dir=out, settings=silent) as run:
        of_figures = {str(path.relative_to(out).with_suffix("")): wandb.Image(str(path)) for path in figures}
        run.log(of_figures | {name: wandb.Table(dataframe=table) for name, table in tables.items()})
        print(f"wandb   {run.url if mode == 'online' else f'wandb sync {Path(run.dir).parent}'}")


def _write_setting(job: tuple[Path, Records, pd.DataFrame, Path]) -> SettingReport | list[str]:
    """Write the report of a setting; if that fails, return what is wrong, so that the other settings are reported."""
    try:
        return setting_report.write(*job)
    except Exception as error:
        return [*job[1].problems, f"{job[0]}: this setting is not reported: {error!r}"]


@entry_point
def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m rmsexp.report", description=__doc__)
    parser.add_argument(
        "results", type=Path, nargs="+", help="root folder of all records, or any folder below it; or several"
    )
    parser.add_argument("--out", type=Path, help="folder of the report (default: report in the first RESULTS)")
    parser.add_argument("--wandb", choices=get_args(WandbMode), help="also log tables and figures to Weights & Biases")
    arguments = parser.parse_args(argv)
    out = config.expanded(arguments.out) if arguments.out else None
    paths = run(*map(config.results_folder, arguments.results), out=out, wandb=arguments.wandb)
    for path in paths:
        print(f"wrote   {path}")
    print(f"next    open {paths[0]} in a browser")
    return 0
