"""The metrics of the reference runs at scale=small, which have one to three seeds per norm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from readme_blocks.evidence import Evidence
from readme_blocks.text import listed, not_recorded, paragraphs, plural, sentences, table
from rmsexp.records import record
from rmsexp.records.frames import names
from rmsexp.report.tables import formats
from rmsexp.system.readers import read_json

NORMS = ("none", "ln", "rms", "prms", "bn", "wn")
EVERYWHERE = "bn+everywhere=True"
LANGUAGE_MODEL = (
    "python -m rmsexp -m task=language_model scale=small seed=0,1,2 data.root=~/data "
    "norm=none,ln,rms,prms,bn,wn,l2,nonparametric_ln,mean_only_bn,dyt,derf"
)


class Runs(NamedTuple):
    """The runs of a task in one setting of a machine. ``target``: (split, metric, mode)."""

    place: str
    runs: pd.DataFrame
    metrics: pd.DataFrame
    target: tuple[str, str, str]

    def values(self, series: str, metric: str, split: str) -> dict[int, float]:
        """Return by seed a metric, in the displayed unit, at the last step of each finished run."""
        found = {}
        finished = self.runs[(self.runs["series"] == series) & (self.runs["status"] == "finished")]
        for run in finished.sort_values("seed").to_dict("records"):
            rows = self.evaluations(run["folder"], split)
            last = rows[rows["step"] == rows["step"].max()]
            found[int(run["seed"])] = names.scale_and_unit(metric)[0] * float(last[metric].iloc[0])
        return found

    def differences(self, first: str, second: str, metric: str, split: str) -> list[float]:
        """Return by how much two series differ at the seeds that both have."""
        values, others = self.values(first, metric, split), self.values(second, metric, split)
        return [value - others[seed] for seed, value in values.items() if seed in others]

    def evaluations(self, folder: str, split: str) -> pd.DataFrame:
        return self.metrics[(self.metrics["folder"] == folder) & (self.metrics["split"] == split)]

    @property
    def steps(self) -> int:
        return int(self.runs["step"].max())

    @property
    def seeds(self) -> int:
        return int(self.runs["seed"].nunique())


def of_task(evidence: Evidence, task: str, setting: str = "small") -> Runs | None:
    """Return the runs of a task; of several machines those of most seeds and norms. None without runs."""
    found = []
    for place in evidence.machines:
        records = evidence.runs(place).select(task, setting)
        if len(records.runs):
            first = records.runs.iloc[0]
            target = (first["target_split"], first["target_metric"], first["target_mode"])
            found.append(Runs(place, records.runs, records.metrics, target))
    return max(found, key=lambda runs: len(runs.runs), default=None)


def _mean(values: Mapping[int, float], metric: str, digits: int = 1) -> str:
    unit = names.scale_and_unit(metric)[1]
    return f"{_average(values):.{digits}f} {unit}".rstrip() if values else formats.NO_VALUE


def _average(values: Mapping[int, float]) -> float:
    return float(np.mean([*values.values()]))


def _interval(values: Sequence[float]) -> str:
    """Return the 95 % t-interval of a mean of two or more values, such as " (± 31)"."""
    if len(values) < 2:
        return ""
    half = float(stdtrit(len(values) - 1, 0.975)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return f" (95 % interval ± {half:.2g})"


def cifar10(evidence: Evidence, setting: str = "small") -> str:
    """A row per norm: the test error of each seed, at the end and at best."""
    runs = of_task(evidence, "cifar10", setting)
    assert runs is not None, f"no runs of cifar10, {setting}"
    split, metric, _ = runs.target
    trained = set(runs.runs["series"])
    rows = []
    for norm in (norm for norm in NORMS if norm in trained):
        folders = runs.runs[runs.runs["series"] == norm].sort_values("seed")["folder"]
        lowest = []
        for folder in folders:
            errors = runs.evaluations(folder, split)
            if len(errors):  # a run can diverge before its first evaluation
                best = errors.loc[errors[metric].idxmin()]
                lowest.append(f"{100 * best[metric]:.2f} % (step {best['step']:.0f})")
        last = [f"{value:.2f} %" for value in runs.values(norm, metric, split).values()]
        rows.append(
            {"norm": names.label(norm), f"test error at step {runs.steps}": ", ".join(last) or formats.NO_VALUE}
        )
        rows[-1] |= {"lowest test error of each run, and its step": ", ".join(lowest) or formats.NO_VALUE}
    if runs.seeds == 1:
        return paragraphs("The table has one seed.", table(rows))
    seeds = f"The table has one value for each seed, of {plural(runs.seeds, 'seed')}."
    differences = runs.differences("rms", "ln", metric, split)
    apart = f"RMSNorm minus LayerNorm is {np.mean(differences or [0]):+.1f} points{_interval(differences)}."
    return paragraphs(seeds, table(rows), apart if differences else "")


def translation(evidence: Evidence) -> str:
    """A row per norm: the test BLEU of both models."""
    both = {task: of_task(evidence, task) for task in ("rnnsearch", "transformer")}
    rows = [
        {"norm": names.label(norm)}
        | {
            f"BLEU of `{task}` at step {runs.steps}": _mean(runs.values(norm, "bleu", "test"), "bleu", 2)
            for task, runs in both.items()
            if runs is not None
        }
        for norm in NORMS
    ]
    epochs = [
        f"{runs.metrics['epoch'].max():.1f} epochs of `{task}`" for task, runs in both.items() if runs is not None
    ]
    return paragraphs(table(rows), f"These are {listed(epochs)}.")


def reading(evidence: Evidence) -> str:
    """A row per norm: the error on LAMBADA, and recalls and ranks on Flickr8k."""
    reader, retrieval = of_task(evidence, "attentive_reader"), of_task(evidence, "order_embedding")
    assert reader is not None, "no runs of attentive_reader"
    assert retrieval is not None, "no runs of order_embedding"
    rows = []
    for series in (*NORMS[:5], EVERYWHERE, *NORMS[5:]):
        name = "BN-Everywhere" if series == EVERYWHERE else names.label(series)
        rows.append({"norm": name, f"LAMBADA, validation error at step {reader.steps}": _error(reader, series)})
        for kind in ("image", "caption"):
            heading = f"Flickr8k, {kind} R@1, R@5, R@10 in % (mean rank) at step {retrieval.steps}"
            rows[-1][heading] = _recalls(retrieval, series, kind)
    chance = [f"By chance: {note}" for runs in (reader, retrieval) for note in _notes(runs, "chance", "retrieval")]
    return paragraphs(table(rows), sentences(*chance))


def language_model(evidence: Evidence) -> str:
    """A row per norm: loss and bits per byte on the test text, as mean and range of the seeds."""
    runs = of_task(evidence, "language_model")
    if runs is None:
        return not_recorded(LANGUAGE_MODEL)
    rows = []
    for series in names.in_order(runs.runs["series"]):
        losses, bits = (runs.values(series, metric, "test") for metric in ("loss", "bits_per_byte"))
        row = {"norm": names.label(series), f"nats per token at step {runs.steps}": _mean_and_range(losses)}
        row["bits per byte"] = _mean_and_range(bits)
        rows.append(row | {"finished runs": f"{len(losses)} of {(runs.runs['series'] == series).sum()}"})
    return paragraphs(
        table(rows),
        sentences(
            "Means of the test text over the finished runs (lowest to highest).", *_notes(runs, "unigram entropy")
        ),
    )


def _mean_and_range(values: Mapping[int, float]) -> str:
    if not values:
        return formats.NO_VALUE
    return f"{_average(values):.4f} ({min(values.values()):.4f} to {max(values.values()):.4f})"


def _error(runs: Runs, series: str) -> str:
    text = _mean(runs.values(series, "error", "valid"), "error", 2)
    batch = runs.values(series, "error_batch", "valid") if series[:2] == "bn" else {}
    return f"{text} ({100 * _average(batch):.2f} % with batch statistics)" if batch else text


def _recalls(runs: Runs, series: str, kind: str) -> str:
    recalls = [runs.values(series, f"{kind}_r{cutoff}", "test") for cutoff in (1, 5, 10)]
    if not recalls[0]:
        return ""
    rank = runs.values(series, f"{kind}_mean_rank", "test")
    return f"{', '.join(f'{_average(values):.1f}' for values in recalls)} ({_average(rank):.0f})"


def _notes(runs: Runs, *keys: str) -> list[str]:
    """Return those of the notes with these keys that the runs have, each with a full stop."""
    notes = read_json(Path(runs.runs["folder"].iloc[0], record.RUN))["notes"]
    return [f"{notes[key]}." for key in keys if key in notes]


def same_answers(evidence: Evidence, split: str, errors: Sequence[float]) -> str:
    """Return at which evaluations a reader's error is that of always naming one entity, as a sentence.

    ``errors``: the error of always naming each entity.
    """
    runs = of_task(evidence, "attentive_reader")
    found = []
    for series in [] if runs is None else names.in_order(runs.runs["series"]):
        for folder in runs.runs.loc[runs.runs["series"] == series, "folder"]:
            rows = runs.evaluations(folder, split)
            equal = np.isclose(rows["error"].to_numpy()[:, None], errors, rtol=0, atol=1e-9).any(axis=1)
            if steps := [f"{step:.0f}" for step in rows.loc[equal, "step"]]:
                found.append(f"{names.label(series)} at step{'s' * (len(steps) > 1)} {listed(steps)}")
    low, high = 100 * min(errors), 100 * max(errors)
    text = f"Always naming the same of the {len(errors)} entities is wrong in {low:.2f} to {high:.2f} %."
    same = "The error of these models is exactly that of always naming one entity, so they give every question the same"
    return sentences(text, f"{same} answer: {'; '.join(found)}." if found else "")
