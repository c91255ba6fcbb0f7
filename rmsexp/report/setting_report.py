"""Write the report of one setting: its tables, texts and figures, from records alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from rmsexp.records import record
from rmsexp.records.frames import names, quantities, statistics
from rmsexp.records.frames.caveats import caveats
from rmsexp.records.frames.load import Records
from rmsexp.report import comparison, paper
from rmsexp.report.page import markdown
from rmsexp.report.page.contents import SettingReport
from rmsexp.report.plots import canvas, setting_curves
from rmsexp.report.plots import p_sweep as p_plot
from rmsexp.report.plots.chart import Chart
from rmsexp.report.tables import findings, learning_rates, markup, seed_tests, time_to_target, versus_paper
from rmsexp.report.tables import p_sweep as p_table
from rmsexp.report.tables import quantities as quantities_table
from rmsexp.report.tables import savings as savings_table
from rmsexp.report.tables import summary as summary_table
from rmsexp.system import atomic


class WrittenReport(NamedTuple):
    """The report of a setting.

    ``drawing`` ends when its figures are written, and returns a line for each that cannot be drawn; None: nothing is
    written. ``files``: the paths of its files.
    """

    report: SettingReport
    drawing: Future[list[str]] | None
    files: list[Path]


class Part(NamedTuple):
    """A table of a report.

    Attributes:
        name: the name of its CSV file, without suffix.
        title: its heading.
        numbers: its values, for the CSV file.
        readable: its cells as text, for people.
    """

    name: str
    title: str
    numbers: pd.DataFrame
    readable: pd.DataFrame


def families(settings: Mapping[Path, Records]) -> dict[Path, dict[Path, Records]]:
    """Return, for each setting, those that differ from it at most in the learning rate, including itself, by folder.

    Settings whose records cannot be compared are left out. If the setting with the learning rate of the task's config
    is in a family, it comes first. ``settings``: the records of all settings (:meth:`Records.settings`).
    """
    by_rest: dict[Path, dict[Path, Records]] = {}
    for folder in sorted(settings, key=lambda path: (len(path.name), path)):
        with suppress(ValueError):
            comparison.check(settings[folder])
            by_rest.setdefault(learning_rates.family(folder), {})[folder] = settings[folder]
    return {folder: family for family in by_rest.values() for folder in family}


def write(
    folder: Path,
    records: Records,
    family: dict[Path, Records],
    timings: pd.DataFrame,
    pool: Executor,
    to: Path,
) -> WrittenReport:
    """Write the report of one setting into the folder ``to``.

    A line for each missing config file is added to the ``problems`` of the setting's records. If its runs cannot be
    compared (see :func:`rmsexp.report.comparison.check`), the reason is added there, too, and the report has timings
    alone. Without timings, nothing is written then.

    Args:
        folder: the folder of the setting.
        records: the records of the setting.
        family: those of the settings that differ from it at most in the learning rate (:func:`families`).
        timings: all timing records (:func:`rmsexp.records.frames.timing_records.load`).
        pool: the executor that writes the figures, perhaps after this function has returned.
        to: the folder of the report, which is made if it is missing.
    """
    task, setting = folder.parent.name, folder.name
    trained = records.runs[~records.runs["series"].str.contains("+published", regex=False)]
    configs = [Path(run, record.CONFIG) for run in trained["folder"]]
    records.problems.extend(f"{path} is missing" for path in configs if not path.is_file())
    comparable = not records.runs.empty
    if comparable:
        try:
            comparison.check(records)
        except ValueError as error:
            records.problems.append(str(error))
            comparable = False
    timings = timings[timings["folder"].map(lambda path: Path(path).is_relative_to(folder)).astype(bool)]
    own = (task, setting) if records.runs.empty else records.names
    for path, *names_of_record in timings[["folder", "task", "setting"]].drop_duplicates().itertuples(index=False):
        if tuple(names_of_record) != own:
            records.problems.append(f"{path}: timing record ignored: it is of {', '.join(names_of_record)}")
    timings = timings[(timings["task"] == own[0]) & (timings["setting"] == own[1])]
    if not comparable and timings.empty:
        return WrittenReport(SettingReport(task, setting, str(folder.parents[1]), to, records), None, [])
    to.mkdir(parents=True, exist_ok=True)
    parts = list(_parts(folder, records, family, timings) if comparable else _times(task, records.only([]), timings))
    numbers, charts = {part.name: part.numbers for part in parts}, dict[str, Chart]()
    if comparable:
        charts["curves"] = setting_curves.chart(records, quantities.recorded(records))
    if "p" in numbers:
        charts["p"] = p_plot.chart(numbers["p"], records, f"{task}, {setting}: the fraction of units p")
    titles = {"curves": "Curves"} | {part.name: part.title for part in parts}
    report = SettingReport(
        task,
        setting,
        str(folder.parents[1]),
        to,
        records,
        tables={part.title: part.readable for part in parts},
        sentences=findings.figure_1(records) if comparable else [],
        notes=[*(caveats(records) if comparable else []), *_about_paper(task, parts)],
        figures={titles[name]: str(to / f"{name}.png") for name in charts},
        curves=charts.get("curves"),
        tests=numbers.get("paired", pd.DataFrame()),
        summary=numbers.get("summary", pd.DataFrame()),
    )
    texts = {f"{part.name}.csv": markup.csv(part.numbers) for part in parts}
    texts |= {"report.md": markdown.setting(report, to), "tables.tex": markdown.latex(report)}
    for name, text in texts.items():
        atomic.write_atomic(to / name, text)
    files = [to / name for name in (*texts, *(f"{name}.png" for name in charts))]
    return WrittenReport(report, pool.submit(_draw, charts, folder, to), files)


def _about_paper(task: str, parts: Sequence[Part]) -> list[str]:
    """Return what is noted about the paper's numbers in the tables."""
    shown = [
        part.numbers.assign(norm=part.numbers["series"].map(names.without_impl))
        for part in parts
        if part.name == "paper"
    ]
    shown += [savings_table.published(part.numbers, task) for part in parts if part.name.startswith("saving")]
    return paper.remarks(pd.concat(shown).drop_duplicates(["table", "norm", "note"])) if shown else []


def _draw(charts: Mapping[str, Chart], folder: Path, to: Path) -> list[str]:
    """Write the figures of a setting as PNG, which takes most of the time of a report.

    Return a line for each that cannot be drawn, with the ``folder`` of the setting.
    """
    problems = []
    for name, chart in charts.items():
        try:
            canvas.write(canvas.draw(chart), to / name, ["png"])
        except Exception as error:  # the other figures and settings are drawn
            problems.append(f"{folder}: the figure {to / name}.png cannot be drawn: {error!r}")
    return problems


def _parts(folder: Path, records: Records, family: dict[Path, Records], timings: pd.DataFrame) -> Iterator[Part]:
    """Yield the tables of the setting in ``folder``, which has runs, without those for which it has no data.

    The table of learning rates covers several settings. It is yielded for the first of them only.
    """
    task, setting = records.names
    target, summary = statistics.target(records), summary_table.table(records, task, setting)
    readable = summary_table.readable(summary)
    yield Part("summary", "Summary", summary, readable[readable.columns[:-2]])  # times have their own tables
    tests = seed_tests.table(records)
    if len(tests):
        yield Part("paired", seed_tests.title(records, tests), tests, seed_tests.readable(tests))
    published = versus_paper.table(records)
    if len(published):
        yield Part("paper", "Compared with the paper", published, versus_paper.readable(published, target))
    yield from _times(task, records, timings)
    shown = quantities_table.table(records)
    yield Part("quantities", quantities_table.title(records), shown, quantities_table.readable(shown, records))
    goal = time_to_target.level(records)
    if goal:
        times = time_to_target.table(records, goal)
        yield Part("target", time_to_target.title(goal), times, time_to_target.readable(times))
    if sum(names.norm_of(series) == p_table.PARTIAL for series in set(records.runs["series"])) > 1:
        by_p = p_table.table(records, task, setting)
        if p_table.has_several(by_p):
            heading = "; ".join(filter(None, ["The fraction of units p", p_table.left_out(records, by_p)]))
            yield Part("p", heading, by_p, p_table.readable(by_p, records))
    if len(family) > 1 and folder == next(iter(family)):
        rates = learning_rates.table(family)
        if rates["series"].duplicated().any():  # final runs of a campaign have one rate for each norm
            yield Part("rates", "Learning rates", rates, learning_rates.readable(rates, target))


def _times(task: str, records: Records, timings: pd.DataFrame) -> Iterator[Part]:
    """Yield the tables of times of a setting, and the list of its timing records."""
    for number, savings in enumerate(savings_table.tables(records, timings), 1):
        name = "saving" if number == 1 else f"saving_{number}"
        yield Part(name, savings.title, savings.numbers, savings_table.readable(savings.numbers, task))
    timed = savings_table.timing_table(timings)
    if len(timed):
        yield Part("timings", savings_table.RECORDS, timed, timed)
