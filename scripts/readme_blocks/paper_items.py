"""The paper's tables and figures, item by item: what the committed records say about each claim, scored by fixed rules.

``ITEMS`` names what each claim rests on. Differences are oriented as the paper's: positive means that the norm named
first is better.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from readme_blocks import ablations, quality, savings
from readme_blocks.evidence import Evidence
from readme_blocks.text import paragraphs, table
from rmsexp.analysis import hidden_stats, invariance, item_kinds, site
from rmsexp.campaign.results import Campaign
from rmsexp.records.frames import names
from rmsexp.report import paper
from rmsexp.report.tables import formats, verdicts
from rmsexp.report.tables import p_sweep as p_table
from rmsexp.rules import claims, pairs

REPRODUCED, AGREES, IN_SIGN, DISAGREES, UNDECIDED = "reproduced", "agrees", "agrees in sign", "disagrees", "undecided"
METRICS = {"cifar10": "error", "attentive_reader": "error", "order_embedding": "image_recall"}
RULES = (
    "Differences with intervals are [verdicts of campaigns](campaigns.md#verdicts), with the reservations that stand "
    "there, or of the seeds that are named; savings are the range over CPUs at `scale=small` ([GPU "
    "timings](gpu.md#what-was-run-on-a-gpu) are too few). Scores follow fixed rules. *Reproduced*: computed exactly. A "
    "difference *agrees in sign*, whatever its size, or *disagrees*, if its interval excludes 0; a saving, if that "
    "holds on every CPU. *Equals*: as the campaign's claim, but undecided if no norm would pass, too. *Learns faster*: "
    "training loss after a quarter of the steps. *Does not train*: whether all runs score below half of LayerNorm's "
    "mean. All else is undecided. \\* the models differ in more than the norm."
)


class Found(NamedTuple):
    """The paper's number; ours, with its interval; and the score."""

    paper: str
    here: str = formats.NO_VALUE
    score: str = UNDECIDED


@dataclass(frozen=True)
class Sources:
    """The records, with the verdicts and timings that several items rest on."""

    evidence: Evidence

    @cached_property
    def decided(self) -> list[Campaign]:
        return [answer for answer in self.evidence.campaigns if not answer.undecided]

    @cached_property
    def verdicts(self) -> list[dict[Any, Any]]:
        """The rows of the decided claims that no later campaign supersedes."""
        return verdicts.newest(verdicts.table(self.decided), self.decided).to_dict("records")

    @cached_property
    def groups(self) -> list[savings.Group]:
        return savings.replicated(savings.groups(self.evidence))


class Item(NamedTuple):
    """A claim of the paper.

    Attributes:
        name: the tables and figures that make it.
        find: the function that finds what the records say about it.
        task, a, b: the task, and the norms that are compared.
        words: the claim in words, if ``find`` does not say it.
    """

    name: str
    find: Callable[[Sources, Item], Found]
    task: str = ""
    a: str = ""
    b: str = ""
    words: str = ""

    @property
    def claim(self) -> str:
        verbs = {"equal": "equals", "saves": "saves time", "unlike_paper": "does not train"}
        verb = verbs.get(self.find.__name__, "is better than")
        named = [names.label(self.a), verb, names.label(self.b) if self.b else ""]
        return self.words or " ".join(filter(None, named))

    @property
    def metric(self) -> str:
        """The metric of the paper's tables of quality; the loss for Figure 4, where ours is about the loss."""
        if self.find == figure_4:
            return "loss"
        return METRICS.get(self.task, "bleu")

    @property
    def unit(self) -> str:
        return names.unit_of_difference(self.metric)

    @property
    def published(self) -> pd.DataFrame:
        """The paper's numbers of the item, in the displayed unit."""
        rows = paper.select(self.task, self.metric)
        tables = [f"Table {number}" for number in re.findall(r"\d+", self.name.partition("Table")[2])]
        factor = names.scale_and_unit(self.metric)[0]
        return rows[rows["table"].isin(tables)].assign(value=lambda rows: factor * rows["value"])

    @property
    def paper(self) -> str:
        """The paper's difference, or the range of those of its frameworks and test sets."""
        each = self.published.pivot_table(index=["table", "framework", "data"], columns="norm", values="value")
        if not {self.a, self.b} <= {*each.columns}:
            return formats.NO_VALUE
        found = pairs.sign("min" if self.metric == "error" else "max") * (each[self.a] - each[self.b]).dropna()
        ends = dict.fromkeys(formats.signed(end, self.metric) for end in (found.min(), found.max()))
        return f"{' to '.join(ends)} {self.unit}"


def equal(sources: Sources, item: Item) -> Found:
    """The paper finds no difference. It rests on a campaign's claim of equivalence."""
    for row in sources.verdicts:
        claimed = (row["task"], row["a"], row["b"], row["test"]) == (item.task, item.a, item.b, claims.EQUIVALENCE)
        if claimed and _metric(row) == item.metric:
            score = {claims.SUPPORTED: AGREES, claims.REFUTED: DISAGREES}.get(row["outcome"], UNDECIDED)
            score = UNDECIDED if row["blind"] else f"{score}{', not registered' * (not row['registered'])}"
            return Found(item.paper, _of_verdict(row, 1, item), score)
    return Found(item.paper)


def better(sources: Sources, item: Item) -> Found:
    """The paper has a better than b. It rests on the intervals of the claims about both norms."""
    found: dict[str, str] = {}
    for row in sources.verdicts:
        about = row["task"] == item.task and {row["a"], row["b"]} == {item.a, item.b} and _metric(row) == item.metric
        if about and not math.isnan(row["low"]):
            sign = 1 if row["a"] == item.a else -1
            score = _sign(*sorted((sign * row["low"], sign * row["high"])))
            if (row["test"], row["outcome"]) == (claims.SUPERIORITY, claims.INCONCLUSIVE):
                score = UNDECIDED  # also where neither norm trains
            found.setdefault(_of_verdict(row, sign, item), f"{score}{'*' * bool(row['remarks'])}")
    agreed = {*found.values()}
    return Found(item.paper, "; ".join(found) or formats.NO_VALUE, agreed.pop() if len(agreed) == 1 else UNDECIDED)


def better_at_small(sources: Sources, item: Item) -> Found:
    """As :func:`better`, for norms of which no campaign has a claim: it rests on the runs at scale=small."""
    runs = quality.of_task(sources.evidence, item.task)
    if runs is None:
        return Found(item.paper)
    split, metric, mode = runs.target
    differences = [pairs.sign(mode) * value for value in runs.differences(item.a, item.b, metric, split)]
    return _of_seeds(item.paper, differences, "small")


def figure_4(sources: Sources, item: Item) -> Found:
    """As :func:`better`; the campaign has the paper's ratio of centre and spread, and is about the loss."""
    last = paper.curves().query("figure == 'Figure 4'").groupby("norm")["y"].last()
    return better(sources, item)._replace(paper=f"{last['rms'] - last['ln']:+.1f} BLEU")


def saves(sources: Sources, item: Item) -> Found:
    """A norm saves time against LayerNorm. It rests on the interleaved timings of eager norms on CPUs."""
    rows = paper.savings(item.task)
    published = f"{', '.join(f'{100 * value:.1f}' for value in rows.loc[rows['norm'] == item.a, 'saving'])} %"
    found = savings.ratios_of(sources.groups, item.task, item.a)
    if not found:
        return Found(published)
    score = _sign(min(1 - interval.high for interval in found), max(1 - interval.low for interval in found))
    return Found(published, savings.range_of(found), score)


def unlike_paper(sources: Sources, item: Item) -> Found:
    """A norm fails to train in the paper. It rests on the scores of a campaign's final runs."""
    rows = item.published
    published = f"{rows.loc[rows['norm'] == item.a, 'value'].max():.1f} {item.unit}"
    for answer in sources.decided:
        scores = answer.scores
        if answer.task == item.task and {item.a, "ln"} <= {*scores}:
            own, reference = np.array([*scores[item.a].values()]), np.nanmean([*scores["ln"].values()])
            trains = own > reference / 2  # False for a run that diverged
            score = DISAGREES if trains.all() else UNDECIDED if trains.any() else AGREES
            return Found(published, f"{np.nanmean(own):.1f} (LayerNorm {reference:.1f})", score)
    return Found(published)


def open_question(_: Sources, item: Item) -> Found:
    """Nothing that is committed decides it."""
    return Found(item.paper if item.a else formats.NO_VALUE)


def invariances(_: Sources, __: Item) -> Found:
    """Table 1 is computed."""
    published = paper.numbers().query("table == 'Table 1'")
    changes = {norm: invariance.changes(site.norm(norm)) for norm in published["norm"].unique()}
    entries = zip(published["norm"], published["metric"], published["value"], strict=True)
    same = sum((changes[norm][name] < invariance.THRESHOLD) == bool(value) for norm, name, value in entries)
    score = REPRODUCED if same == len(published) else DISAGREES
    return Found(f"{len(published)} entries", f"{same} equal", score)


def first_quarter(sources: Sources, _: Item) -> Found:
    """Figure 1a: the training loss after a quarter of the steps, without norm minus with LayerNorm, at scale=medium."""
    marked = paper.numbers().query("task == 'rnnsearch' and unit == 'nats'").set_index("table")["value"]
    published = f"{marked['Figure 1'] - marked['Figure 1a']:+.1f} nats"
    for place in sources.evidence.machines:
        records = sources.evidence.runs(place).select("rnnsearch", ablations.SETTING)
        if records.runs.empty:
            continue
        at = records.metrics.merge(records.runs[["folder", "recipe_steps"]], on="folder")
        at = at[(at["split"] == "train") & (at["step"] == at["recipe_steps"] // 4)]
        loss = at.pivot_table(index="seed", columns="series", values="loss")
        if {"none", "ln"} <= {*loss.columns}:
            return _of_seeds(published, (loss["none"] - loss["ln"]).dropna().tolist())
    return Found(published)


def p_matters_little(sources: Sources, __: Item) -> Found:
    """Figure 3: with each p of the figure, pRMSNorm equals RMSNorm within the margin of the campaign."""
    of_bleu = [row for row in sources.verdicts if row["task"] == "rnnsearch" and _metric(row) == "bleu"]
    margins = [row["margin"] for row in of_bleu if row["margin"] > 0]
    if not margins:
        return Found(formats.NO_VALUE)
    runs = p_table.table(sources.evidence.runs("quality"), "rnnsearch", ablations.SETTING)
    whole = runs[runs["series"] == p_table.WHOLE].set_index("seed")[ablations.BLEU.name]
    outcomes = []
    for _, own in runs[runs["p"].between(0.1, 0.9)].groupby("p"):
        low, high = _interval((own.set_index("seed")[ablations.BLEU.name] - whole).dropna().tolist())
        margin = min(margins)
        outcomes.append(AGREES if -margin < low <= high < margin else DISAGREES if high < -margin else UNDECIDED)
    here = f"{outcomes.count(AGREES)} of {len(outcomes)} p within {min(margins):g} BLEU"
    score = next((score for score in (DISAGREES, UNDECIDED, AGREES) if score in outcomes), UNDECIDED)
    return Found(formats.NO_VALUE, f"{here}, {len(whole)} seeds", score)


def steadier_mapping(sources: Sources, _: Item) -> Found:
    """Table 5: the range over positions of the standard deviation without norm, minus that with RMSNorm."""
    (difference,) = _ranges(hidden_stats.published_table().assign(seed=0))
    file = sources.evidence.reference / ablations.DRAWN / "table5.csv"
    if not file.exists():
        return Found(f"{difference:+.2f}")
    values = pd.read_csv(file, dtype={"position": str})
    values = values[values["mapping"] == item_kinds.MAPPING].assign(norm=values["series"].map(names.norm_of))
    return _of_seeds(f"{difference:+.2f}", _ranges(values))


def _ranges(values: pd.DataFrame) -> list[float]:
    each = values[values["position"] != "all"].groupby(["norm", "seed"])["std"]
    ranges = (each.max() - each.min()).unstack("seed")
    return [float(value) for value in (ranges.loc["none"] - ranges.loc["rms"]).dropna().to_numpy()]


def _metric(row: dict[Any, Any]) -> str:
    return str(row["score"].split()[1])


def _of_verdict(row: dict[Any, Any], sign: int, item: Item) -> str:
    """Return the difference of a verdict with the interval that decides it. ``sign``: -1 turns it around."""
    metric, (low, high) = _metric(row), sorted((sign * row["low"], sign * row["high"]))
    text = f"{formats.signed(sign * row['difference'], metric)} ({formats.ends(low, high, metric, row['margin'])})"
    return text if item.paper.endswith(row["unit"]) else f"{text} {row['unit']}"


def _of_seeds(published: str, differences: Sequence[float], scale: str = "") -> Found:
    """Return what differences at the same seeds say, by a 90 % t-interval. ``scale``: unless that of campaigns."""
    low, high = _interval(differences)
    if math.isinf(low):
        return Found(published)
    where = f"{len(differences)} seeds{f' at `{scale}`' * bool(scale)}"
    return Found(published, f"{np.mean(differences):+.2f} ({low:+.2f} to {high:+.2f}), {where}", _sign(low, high))


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 90 % t-interval of a mean; without end if there are fewer than two values."""
    if len(values) < 2:
        return -math.inf, math.inf
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, 0.95)) * error
    return mean - half, mean + half


def _sign(low: float, high: float) -> str:
    return IN_SIGN if low > 0 else DISAGREES if high < 0 else UNDECIDED


RNN, TRANSFORMER, READER, ORDER, CIFAR = "rnnsearch", "transformer", "attentive_reader", "order_embedding", "cifar10"
CENTRED = "+model.init_center=0.4"  # the dose of the figure, in campaign figure4_dose
TIMED = {"Tables 2, 3": RNN, "Table 4": TRANSFORMER, "Table 6": READER, "Table 8": ORDER, "Table 10": CIFAR}
ITEMS = (
    Item("Table 1", invariances, words="invariances"),
    Item("Figure 1a", first_quarter, words="LayerNorm learns faster than no norm"),
    Item("Figure 2, Table 2", better, RNN, "ln", "none"),
    Item("Figure 2, Table 2", open_question, RNN, "none", "l2"),
    Item("Tables 2, 3", equal, RNN, "rms", "ln"),
    Item("Tables 2, 3", equal, RNN, "prms", "ln"),
    Item("Figure 3", p_matters_little, words="p matters little"),
    Item("Table 4", equal, TRANSFORMER, "rms", "ln"),
    Item("Table 4", equal, TRANSFORMER, "prms", "ln"),
    Item("Table 4", unlike_paper, TRANSFORMER, "none"),
    Item("Table 5", steadier_mapping, words="the standard deviation varies less over positions than without norm"),
    Item("Figure 4", figure_4, RNN, f"rms{CENTRED}", f"ln{CENTRED}", "RMSNorm is better than LayerNorm"),
    Item("Figure 5", equal, READER, "rms", "ln"),
    Item("Figure 5", better, READER, "rms", "prms"),
    Item("Figure 5", open_question, READER, "rms", "bn"),
    Item("Figure 6, Table 7", better, ORDER, "ln", "none"),
    Item("Figure 6, Table 7", equal, ORDER, "rms", "ln"),
    Item("Figure 6, Table 7", equal, ORDER, "prms", "ln"),
    Item("Table 9", open_question, words="order of training errors"),
    Item("Table 10", better, CIFAR, "rms", "ln"),
    Item("Table 10", better, CIFAR, "none", "ln"),
    Item("Table 10", better, CIFAR, "rms", "prms"),
    Item("Table 10", better, CIFAR, "rms", "none"),
    Item("Table 10", better_at_small, CIFAR, "bn", "rms"),
    Item("Table 10", better_at_small, CIFAR, "wn", "rms"),
    Item("Figure 7, A.1", open_question, words="WeightNorm converges slowly"),
    *(Item(name, saves, task, norm) for name, task in TIMED.items() for norm in ("rms", "prms")),
)


def scores(evidence: Evidence) -> str:
    """A row for each claim: the paper's number, ours, and the score."""
    sources, rows = Sources(evidence), []
    for item in ITEMS:
        found = item.find(sources, item)
        row = {"item": item.name, "claim": item.claim, "paper": found.paper, "here": found.here}
        rows.append(row | {"score": found.score})
    return paragraphs(table(rows), RULES)
