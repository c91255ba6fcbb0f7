"""The report of all campaigns: verdicts, tuning, and the figures of both, from records alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from rmsexp.campaign.results import Campaign
from rmsexp.config import score
from rmsexp.records.frames import names
from rmsexp.records.frames.load import Records
from rmsexp.report.plots import canvas, style
from rmsexp.report.plots import verdicts as panels
from rmsexp.report.plots.chart import Chart, legend
from rmsexp.report.plots.verdicts import Timed, timed
from rmsexp.report.tables import markup, verdicts
from rmsexp.system import atomic

DIFFERENCES = (
    "positive: the norm named first is better; bars: interval by which the claim was decided; "
    "shaded: differences at which a claim with a margin holds; arrow: the difference lies beyond the panel\n"
    f"*: with remarks, listed in report.md; †: {verdicts.CHOSEN_RATES}; still improving: a norm gained more than half "
    "a margin in the last fifth of its steps; cannot see a difference: a model without norm would be equal, too; "
    "not by the margin: better, but perhaps by less than the margin; [...]: the campaign"
)
RATES = (
    "points: seeds; lines: means; ring: chosen rate, the best of those with all tuning seeds; "
    "at the edge: x: diverged, arrow: far worse than most"
)
RANGES = "; bars: stable range of rates (interpolated mean within the tolerance of the best mean), with the best rate"
EQUAL_TIME = (
    "mean over the final seeds; band: lowest to highest seed; evaluated on the first "
    f"{score.SAMPLE_EXAMPLES} validation examples, among which recall is higher than in tables; "
    "time: steps x seconds per step, measured interleaved"
)
LADDER = "positive: the norm named first is better; band: 90 % interval over seeds at each size"


@dataclass(frozen=True)
class CampaignReport:
    """The contents of the report of all campaigns; texts, except ``numbers``, which are :func:`.verdicts.newest`.

    ``tables``: by title, the tables other than ``matrix`` and ``verdicts``. ``charts``: by the names of their files,
    without suffix. ``settings``: by the campaign's name in ``numbers``, the folders of the settings that have its runs.
    """

    questions: list[str]
    numbers: pd.DataFrame
    matrix: pd.DataFrame
    verdicts: pd.DataFrame
    tables: dict[str, pd.DataFrame]
    charts: dict[str, Chart]
    notes: list[str]
    settings: dict[str, set[Path]]

    @property
    def markdown(self) -> str:
        """The report as Markdown; its figures are in the folder of the text."""
        parts = ["## Verdicts", markup.listed(self.questions)]
        parts += [markup.markdown(self.matrix), markup.markdown(self.verdicts)]
        for name, chart in self.charts.items():
            parts += [f"![{chart.title}]({name}.png)", *chart.caption]
        for title, table in self.tables.items():
            parts += [f"### {title}", markup.markdown(table)]
        return "\n\n".join([*parts, markup.listed(self.notes)]).rstrip()


def write(
    campaigns: Sequence[Campaign], records: Records, timings: pd.DataFrame, left_out: int, folder: Path
) -> CampaignReport:
    """Write ``verdicts.csv``, ``rates.csv`` and the figures into ``folder``, and return the contents of the report.

    ``records``, ``timings``: all runs and all timing records. ``left_out``: the number of settings without a report,
    because all their runs are pilot or tuning runs, or for stable ranges.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = verdicts.table(campaigns)
    atomic.write_atomic(folder / "verdicts.csv", markup.csv(table))
    atomic.write_atomic(folder / "rates.csv", markup.csv(verdicts.rates(campaigns)))
    decided = [campaign for campaign in campaigns if not campaign.undecided]
    times = {str(campaign.path): found for campaign in decided if (found := timed(campaign, records, timings))}
    numbers = verdicts.newest(table, campaigns)
    charts = _charts(campaigns, numbers, records, times)
    for name, chart in charts.items():
        canvas.save(chart, folder / name)
    tuned = {}
    for campaign in campaigns:
        (split, metric), what = campaign.rated_by, "Tuning" if campaign.tolerance is None else "Stable range"
        title = f"{what} of {campaign.rate}, by {split} {names.metric_label(metric)}: {campaign.name}"
        tuned[title] = verdicts.readable_rates(campaign)
    notes = [f"* {campaign.name}: {remark}" for campaign in campaigns for remark in campaign.all_remarks()]
    notes += [f"† {verdicts.CHOSEN_RATES}"] * any(map(verdicts.note_on_rates, table.to_dict("records")))
    if untimed := [campaign.name for campaign in decided if str(campaign.path) not in times]:
        notes.append(f"without interleaved times of two norms, so not drawn at equal time: {', '.join(untimed)}")
    if left_out:
        runs = "pilot or tuning runs of campaigns, or for stable ranges"
        notes.append(f"settings left out, because all their runs are {runs}: {left_out}")
    return CampaignReport(
        questions=[f"{campaign.question} ({campaign.name}, {campaign.task})" for campaign in campaigns],
        numbers=numbers,
        matrix=verdicts.matrix(numbers, campaigns),
        verdicts=verdicts.readable(table),
        tables=tuned,
        charts=charts,
        notes=notes,
        settings={each.name: {(each.root / job.folder).parents[1] for job in each.jobs} for each in campaigns},
    )


def _charts(
    campaigns: Sequence[Campaign], numbers: pd.DataFrame, records: Records, times: dict[str, Timed]
) -> dict[str, Chart]:
    """Return the charts that have panels, by the name of their file. ``numbers``: as in :class:`CampaignReport`."""
    norms = [(campaign, norm) for campaign in campaigns for norm in (*campaign.norms, *campaign.every_arm)]
    series = {norm: panels.shown(campaign, norm) for campaign, norm in norms}
    looks = style.looks(names.in_order(series.values()))
    looks = {norm: looks[name] for norm, name in series.items()} | looks
    ranges = RANGES * any(campaign.ranges for campaign in campaigns)
    decided = [campaign for campaign in campaigns if not campaign.undecided]
    timed = [(campaign, times[str(campaign.path)]) for campaign in decided if str(campaign.path) in times]
    ladders = [panels.ladder(campaign, looks) for campaign in decided if campaign.ladder]
    # where most norms have no time, a panel of the others would mislead
    of_most = [(campaign, own) for campaign, own in timed if 2 * len(own.seconds) > len(campaign.norms)]
    newer: dict[str | None, list[str]] = {}
    for campaign in decided:
        newer.setdefault(campaign.supersedes, []).extend(campaign.norms)
    by_time = [panels.equal_time(each, records, own, looks, newer.get(each.name, ())) for each, own in of_most]
    machines = "\nmachines: " + ", ".join(f"{campaign.name} {own.machine}" for campaign, own in of_most)
    drawn = {
        "differences": ("Differences and margins", DIFFERENCES, panels.differences(numbers, looks)),
        "rates": ("Quality against the tuned rate", RATES + ranges, [panels.rates(each, looks) for each in campaigns]),
        "ladder": ("Differences along the ladder", LADDER, ladders),
        "equal_time": ("Quality at equal time", EQUAL_TIME + machines, by_time),
    }
    return {
        name: Chart(title, caption.splitlines(), shown, legend(shown))
        for name, (title, caption, every_panel) in drawn.items()
        if (shown := [panel for panel in every_panel if panel.marks or panel.texts])
    }
