"""Write the report of all campaigns: verdicts, tuning, and the figures of both, from records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pandas as pd

from rmsexp.campaign.results import Campaign
from rmsexp.config import score
from rmsexp.records.frames import names
from rmsexp.records.frames.load import Records
from rmsexp.report.campaign_times import Timed, timed
from rmsexp.report.page.contents import CampaignReport
from rmsexp.report.plots import canvas, verdict_figures, verdict_panels
from rmsexp.report.plots.verdict_panels import Panel
from rmsexp.report.tables import campaign_rates, markup, verdicts
from rmsexp.system import atomic

FOREST, RATES, TIME = "Differences and margins", "Quality against the tuned rate", "Quality at equal time"
LADDER = "Differences along the ladder"
FILES = {FOREST: "differences", RATES: "rates", LADDER: "ladder", TIME: "equal_time"}
READING = {
    FOREST: "positive: the norm named first is better; bars: interval by which the claim was decided; "
    "shaded: differences at which a claim with a margin holds; arrow: the difference lies beyond the panel",
    RATES: "points: seeds; lines: means; ring: chosen rate, the best of those with all tuning seeds; "
    "x at the edge: diverged",
    LADDER: "positive: the norm named first is better; band: 90 % interval over seeds at each size",
}


def write(
    campaigns: Sequence[Campaign], records: Records, timings: pd.DataFrame, tuning: int, folder: Path
) -> CampaignReport:
    """Write ``verdicts.csv``, ``rates.csv`` and the figures into ``folder``, and return the contents of the report.

    Args:
        campaigns: the campaigns with their results.
        records: all runs.
        timings: all timing records (:func:`rmsexp.records.frames.timing_records.load`).
        tuning: the number of settings that have no report because all their runs are pilot or tuning runs.
        folder: the folder of the report; it is created if it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = verdicts.table(campaigns)
    atomic.write_atomic(folder / "verdicts.csv", markup.csv(table))
    atomic.write_atomic(folder / "rates.csv", markup.csv(campaign_rates.table(campaigns)))
    times = {str(campaign.path): found for campaign in campaigns if (found := timed(campaign, records, timings))}
    figures = {
        FOREST: verdict_panels.differences(campaigns),
        RATES: verdict_panels.rates(campaigns),
        LADDER: verdict_panels.ladders(campaigns),
        TIME: verdict_panels.equal_time(campaigns, records, times),
    }
    figures = {title: panels for title, panels in figures.items() if panels}
    captions = READING | {FOREST: "; ".join([READING[FOREST], *_marks(campaigns, table)])}
    if any(campaign.tolerance is not None for campaign in campaigns):
        captions[RATES] += "; horizontal bar: rates at which the interpolated mean is within the tolerance of the best"
    captions |= {TIME: _reading_times(campaigns, times, figures.get(TIME, []))}
    for title, panels in figures.items():
        canvas.write(verdict_figures.draw(panels, title, [captions[title]]), folder / FILES[title])
    tuned = {
        f"Tuning of {campaign.rate}, by {_metric(campaign)}: {campaign.name}": campaign_rates.readable(campaign)
        for campaign in campaigns
    }
    return CampaignReport(
        questions=[f"{campaign.question} ({campaign.name}, {campaign.task})" for campaign in campaigns],
        numbers=table,
        matrix=verdicts.matrix(campaigns),
        verdicts=verdicts.readable(table),
        tables=tuned,
        figures=figures,
        images={title: folder / f"{FILES[title]}.png" for title in figures},
        captions=captions,
        notes=_notes(campaigns, table, times, tuning),
        settings={
            campaign.name: {campaign.root / PurePosixPath(job.setting) for job in campaign.jobs}
            for campaign in campaigns
        },
    )


def _metric(campaign: Campaign) -> str:
    split, metric = campaign.tuned_by
    return f"{split} {names.metric_label(metric)}"


def _reading_times(campaigns: Sequence[Campaign], times: dict[str, Timed], panels: Sequence[Panel]) -> str:
    """Return the caption of quality at equal time. ``panels``: its panels; the labels of their marks count seeds."""
    drawn = [campaign for campaign in campaigns if not campaign.undecided]
    found = [(campaign.task, times.get(str(campaign.path))) for campaign in drawn]
    sources = {f"{task}: {timed.source}" for task, timed in found if timed is not None}
    easier = any("recall" in campaign.score.metric for campaign in campaigns)
    reading = (
        "mean over the final seeds, and its 95 % t-interval; evaluated on the first "
        f"{score.INTERIM_EXAMPLES} validation examples{', among which recall is higher than in tables' * easier}; "
        "time: steps x seconds per step, measured interleaved"
    )
    lines = [(panel.title, line) for panel in panels for line in panel.marks]
    fewer = [f"{title}: {line.label}" for title, line in lines if line.label != names.label(line.norm)]
    of_seeds = [f"means that leave out seeds: {', '.join(fewer)}"] if fewer else []
    return "; ".join([reading, *of_seeds, *sorted(sources), *_not_drawn(campaigns, times)])


def _notes(campaigns: Sequence[Campaign], numbers: pd.DataFrame, times: dict[str, Timed], tuning: int) -> list[str]:
    """Return remarks on verdicts, campaigns and norms without times, and the number of settings without a report.

    ``numbers``: the verdicts (:func:`rmsexp.report.tables.verdicts.table`).
    """
    untimed = [campaign.name for campaign in campaigns if not campaign.undecided and str(campaign.path) not in times]
    without = [
        f"{name} is not in the figure of quality at equal time, because no interleaved timing record (python -m "
        "rmsexp.timing) of its task and scale has two of its norms"
        for name in untimed
    ]
    left_out = [f"settings left out, because all their runs are pilot or tuning runs of campaigns: {tuning}"]
    return _marks(campaigns, numbers) + without + _not_drawn(campaigns, times) + left_out * (tuning > 0)


def _marks(campaigns: Sequence[Campaign], numbers: pd.DataFrame) -> list[str]:
    """Return what the marks of outcomes mean: of remarks on campaigns, and of verdicts for the chosen rates only."""
    remarks = [f"* {campaign.name}: {remark}" for campaign in campaigns for remark in campaign.all_remarks()]
    return remarks + [f"† {text}" for text in verdicts.notes_on_rates(numbers)]


def _not_drawn(campaigns: Sequence[Campaign], times: dict[str, Timed]) -> list[str]:
    """Return which norms of decided campaigns with times are not in the figure of quality at equal time, and why."""
    lines = []
    for campaign in (campaign for campaign in campaigns if not campaign.undecided and str(campaign.path) in times):
        timed = times[str(campaign.path)]
        untimed = [norm for norm in campaign.norms if norm not in timed.seconds]
        finished = {
            job.norm for job, result in campaign.results.items() if (job.stage, result.status) == ("final", "finished")
        }
        lost = [norm for norm in timed.seconds if norm not in finished]
        place = f"{campaign.name}: not in the figure of quality at equal time"
        for reason, norms in (
            ("its timing records do not have them", untimed),
            ("none of their final runs finished", lost),
        ):
            if norms:
                lines.append(f"{place}, because {reason}: {', '.join(map(names.label, norms))}")
    return lines


def is_tuning(folder: Path, records: Records, campaigns: Sequence[Campaign]) -> bool:
    """Return whether a setting has runs, and all are pilot or tuning runs of campaigns. ``folder``: the setting's."""
    runs = {
        campaign.root / job.folder
        for campaign in campaigns
        for job in campaign.jobs
        if job.stage != "final" and folder == campaign.root / PurePosixPath(job.setting)
    }
    return not records.runs.empty and all(Path(run) in runs for run in records.runs["folder"])
