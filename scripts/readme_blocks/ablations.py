"""The paper's ablations on RNNSearch at scale=medium: Figure 3 (p), Figure 4 (initial weights) and Table 5."""

from __future__ import annotations

import math

import pandas as pd

from readme_blocks.evidence import Evidence
from readme_blocks.quality import Runs
from readme_blocks.text import not_recorded, paragraphs, table
from rmsexp.analysis import hidden_stats, item_kinds
from rmsexp.records.frames import names, quantities
from rmsexp.report.tables import formats
from rmsexp.report.tables import p_sweep as p_table

COMMAND = "python -m rmsexp.campaign {item} scale=medium norm.impl=fused 'seeds=[0,1,2]' data.root=~/data"
DRAWN = "quality/paper/medium+norm.impl=fused"  # items drawn by these commands
SETTING = "medium"
NORMS = ("none", "ln", "rms")
CENTRES = ("BLEU, centred on 0", "BLEU, centred on 0.2")
BLEU = quantities.usual("valid", "bleu")


def p_sweep(evidence: Evidence) -> str:
    """Validation BLEU of RNNSearch with pRMSNorm for each p, and with RMSNorm."""
    runs = p_table.table(evidence.runs("quality"), "rnnsearch", SETTING)
    if not p_table.has_several(runs):
        return not_recorded(COMMAND.format(item="figure3"))
    rows = []
    for (p, series), group in runs.groupby(["p", "series"]):
        name = names.label("rms") if series == p_table.WHOLE else f"{names.label('prms')}, p = {100 * p:.4g} %"
        scores = group.sort_values("seed")[BLEU.name].dropna()
        values = ", ".join(f"{score:.1f}" for score in scores)
        rows.append({"norm": name, "BLEU of each seed": values, "mean": f"{scores.mean():.1f}"})
    return paragraphs(
        table(rows),
        "BLEU on the validation set, as the mean of the last three of twenty evaluations, of runs of "
        f"{_runs(evidence, SETTING).steps:,} steps with the recipe's learning rate.",
    )


def init_center(evidence: Evidence) -> str:
    """Validation BLEU of RNNSearch with initial weights centred on 0.2, beside runs with the usual weights."""
    usual, moved = (_runs(evidence, setting) for setting in (SETTING, f"{SETTING}+model.init_center=0.2"))
    if not len(moved.runs):
        return not_recorded(COMMAND.format(item="figure4"))
    rows = []
    for norm in NORMS:
        found = [runs.values(_fused(norm), "bleu", "valid") for runs in (usual, moved)]
        seeds = [seed for seed in found[0] if seed in found[1]]
        texts = [", ".join(f"{values[seed]:.1f}" for seed in seeds) or formats.NO_VALUE for values in found]
        rows.append({"norm": names.label(norm)} | dict(zip(CENTRES, texts, strict=True)))
    return paragraphs(
        table(rows),
        f"Each value is a run of {moved.steps:,} steps with the recipe's learning rate: BLEU on the validation set "
        "after the last. Both columns have the same seeds, in the same order.",
    )


def hidden_to_hidden(evidence: Evidence) -> str:
    """Table 5: the hidden-to-hidden mapping of the decoder by target position, and the paper's values."""
    file = evidence.reference / DRAWN / "table5.csv"
    if not file.exists():
        return not_recorded(COMMAND.format(item="table5"))
    values = pd.read_csv(file, dtype={"position": str})
    values = values[values["mapping"] == item_kinds.MAPPING].assign(norm=values["series"].map(names.norm_of))
    published = hidden_stats.published_table()
    rows = []
    for norm in NORMS:
        for statistic, label in hidden_stats.STATISTICS.items():
            cells = {"norm": names.label(norm), "over the units": label}
            for position in published["position"].unique():
                at = [found[(found["norm"] == norm) & (found["position"] == position)] for found in (values, published)]
                ours, paper = (_rounded(found[statistic].mean()) for found in at)
                cells["all positions" if position == "all" else f"position {position}"] = f"{ours} ({paper})"
            rows.append(cells)
    return paragraphs(
        table(rows),
        f"Means over {values['seed'].nunique()} seeds, and in parentheses the paper's Table 5.",
    )


def _runs(evidence: Evidence, setting: str) -> Runs:
    records = evidence.runs("quality").select("rnnsearch", setting)
    return Runs("quality", records.runs, records.metrics, ("valid", "bleu", "max"))


def _rounded(value: float) -> str:
    return formats.NO_VALUE if math.isnan(value) else f"{round(value, 2) + 0.0:.2f}"


def _fused(norm: str) -> str:
    return f"{norm}+impl=fused"
