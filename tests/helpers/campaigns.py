"""Synthetic campaigns: their files and the records of their runs, for tests of verdicts and of their report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmsexp.campaign import campaign_file
from rmsexp.campaign import results as campaign_results
from rmsexp.records import record
from rmsexp.rules import selection
from rmsexp.system import atomic, clock

STEPS = 1000
POINTS = [STEPS * number // 20 for number in range(1, 21)]
EQUAL = {"claim": "RMSNorm equals LayerNorm", "test": "equivalence", "a": "rms", "b": "ln", "margin": 1.5}
BETTER = {"claim": "RMSNorm is better than no norm", "test": "superiority", "a": "rms", "b": "none", "margin": None}
NOT_WORSE = {
    "claim": "pRMSNorm is not worse than RMSNorm",
    "test": "noninferiority",
    "a": "prms+p=0.5",
    "b": "rms",
    "margin": 1.5,
}


@dataclass
class Campaign:
    """A campaign of runs whose scores are chosen by a formula.

    Attributes:
        name, task, metric, mode: as in ``campaign.json``; scores are on the test split.
        level: the score of each norm at its best rate, in the displayed unit.
        best: the best rate of each norm.
        grid: the rates.
        seeds: the number of final seeds; ``needed`` that is written, None for a campaign before its first look.
        gone: (norm, final seed) of runs that were not done.
        diverged: (norm, final seed) of runs that diverged.
        rules: the version of the rules: 1 for rates an octave apart, 2 for rates a quarter-octave apart.
        gain: by how much the metric improves in the last fifth of the steps, in the displayed unit.
        setting: the scale of all runs, and the options that they share.
        changes: keys of ``campaign.json`` that are replaced.
    """

    name: str = "quality_cifar10"
    task: str = "cifar10"
    metric: str = "error"
    mode: str = "min"
    level: Mapping[str, float] = field(default_factory=lambda: {"none": 24.0, "ln": 16.0, "rms": 16.1})
    best: Mapping[str, float] = field(default_factory=lambda: {"none": 0.002, "ln": 0.004, "rms": 0.004})
    grid: Sequence[float] = (0.001, 0.002, 0.004, 0.008)
    seeds: int = 8
    needed: int | None = 8
    claims: Sequence[dict[str, Any]] = (EQUAL, BETTER)
    gone: set[tuple[str, int]] = field(default_factory=set)
    diverged: set[tuple[str, int]] = field(default_factory=set)
    commits: Sequence[str] = ("abc",)
    rules: int = 2
    gain: float = 0.0
    setting: str = "small"
    changes: Mapping[str, Any] = field(default_factory=dict)

    def write(self, root: Path) -> Path:
        """Write the file and the runs below ``root``; return the file's path."""
        for job in self._tune():
            self._write_run(root, job, "finished")
        for job in self._final():
            key = job["norm"], job["seed"]
            if key not in self.gone:
                self._write_run(root, job, "diverged" if key in self.diverged else "finished")
        return self.write_file(root)

    def write_file(self, root: Path) -> Path:
        """Write the file without any runs below ``root``; return its path."""
        path = root / "campaigns" / self.name / "campaign.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = self._content([*self._tune(), *self._final()]) | dict(self.changes)
        seeds = {key: (content["seeds"] or {}).get(key) for key in self._seed_keys}
        rules = {key: content[key] for key in ("claims", "norms", "grid")}
        rules |= {"final": {"seeds": seeds}} if self.rules == 1 else {"final": seeds, "rules": 2}
        rules |= {key: content[key].split() for key in ("tuned_by", "score")}
        rules |= {"runs": sorted(f"{key}={value}" for key, value in content["runs"].items())}
        rules |= {"tune": {"first_seed": 1000}, "question": content["question"]}
        registered = content["registered"]
        if registered is not None:
            registered["digest"] = campaign_file.digest(rules)
            atomic.write_json(path.with_name(campaign_file.REGISTRATION), registered | {"rules": rules})
        atomic.write_json(path, content)
        return path

    def _content(self, jobs: list[dict[str, Any]]) -> dict[str, Any]:
        registered = {"digest": "d", "commit": self.commits[0], "date": "2026-11-22T00:00:00+00:00", "changed": None}
        least, most = self._seed_keys
        return {
            "format": 1,
            **({} if self.rules == 1 else {"rules": self.rules}),
            "name": self.name,
            "question": f"Does RMSNorm match LayerNorm on {self.task}?",
            "runs": {"task": self.task, "scale": "small"},
            "rate": "optim.lr",
            "mode": self.mode,
            "tuned_by": f"valid {self.metric}",
            "score": f"test {self.metric}",
            "norms": list(self.level),
            "grid": list(self.grid),
            "seeds": {"tune": [1000, 1001, 1002], least: self.seeds, most: 16, "needed": self.needed},
            "claims": [{"family": None, "seeds": None} | claim for claim in self.claims],
            "jobs": jobs,
            "registered": registered,
        }

    @property
    def _seed_keys(self) -> tuple[str, str]:
        return ("look", "most") if self.rules == 1 else ("min_seeds", "max_seeds")

    def _tune(self) -> list[dict[str, Any]]:
        """Return the tuning runs that the rules ask for if the scores are those of the formula."""
        if self.rules > 1 and len(self.grid) == 1:
            return []
        rule = {1: selection.OCTAVES, 2: selection.QUARTERS}[self.rules]
        values: dict[str, dict[float, dict[int, float]]] = {norm: {} for norm in self.best}
        while runs := selection.tune(self.grid, values, self.mode, (1000, 1001, 1002), rule).runs:
            for run in runs:
                job = {"norm": run.norm, "rate": run.rate, "seed": run.seed}
                score = sum(self.value(job, step, "valid") for step in POINTS[-3:]) / 3
                values[run.norm].setdefault(run.rate, {})[run.seed] = score
        return [
            self._job("tune", norm, rate, seed)
            for norm, tried in values.items()
            for rate, seeds in sorted(tried.items())
            for seed in sorted(seeds)
        ]

    def _final(self) -> list[dict[str, Any]]:
        return [self._job("final", norm, rate, seed) for norm, rate in self.best.items() for seed in range(self.seeds)]

    def _job(self, stage: str, norm: str, rate: float, seed: int) -> dict[str, Any]:
        evaluation = "scored" if stage == "final" else "validation"
        setting = f"{self.setting}+evaluation={evaluation}+optim.lr={rate:g}"
        folder = f"{self.task}/{setting}/{norm}/seed{seed}"
        return {"stage": stage, "norm": norm, "rate": rate, "seed": seed, "folder": folder}

    def _write_run(self, root: Path, job: dict[str, Any], status: str) -> None:
        task, setting, series, _ = job["folder"].split("/")
        evaluation = "scored" if job["stage"] == "final" else "validation"
        folder = root / job["folder"]
        folder.mkdir(parents=True, exist_ok=True)
        session = {
            "from_step": 0,
            "git": {"commit": self.commits[job["seed"] % len(self.commits)], "dirty": False},
            "versions": {"torch": "2.15.0"},
            "device": "AMD EPYC",
            "threads": 1,
            "contention": {"state": "contended"},
        }
        identity = {"task": task, "norm": series.split("+")[0], "scale": "small", "seed": job["seed"]}
        identity |= {"setting": setting, "series": series, "impl": "fused"}
        content = identity | {
            "format": 1,
            "recipe_steps": STEPS,
            "evaluation": evaluation,
            "target": {"split": "test", "metric": self.metric, "mode": self.mode, "selection": "valid"},
            "dataset": {"name": "real data", "digest": "0", "builtin": False},
            "parameters": {"total": 1, "modules": {}},
            "sessions": [session],
        }
        (folder / record.RUN).write_text(json.dumps(content))  # faster than atomic writes of so many files
        (folder / record.CONFIG).write_text(f"optim: {{lr: {job['rate']}}}\n")
        steps = STEPS if status == "finished" else STEPS // 2
        (folder / record.STATUS).write_text(json.dumps({"status": status, "step": steps, "error": None}))
        rows = [row for step in POINTS if step <= steps for row in self._rows(job, step, evaluation)]
        (folder / record.METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def _rows(self, job: dict[str, Any], step: int, evaluation: str) -> list[record.Row]:
        splits = ["interim"]
        if step in POINTS[-3:]:
            splits += ["valid"] if evaluation == "validation" else ["valid", "test"]
        seconds = dict.fromkeys(clock.BUCKETS, 0.0) | {"train": 0.1 * step, "eval": 0.01 * step}
        shared = {"step": step, "epoch": step / 500, "examples": 50 * step, "seconds": seconds}
        loss = 0.4 + 2 * math.exp(-step / 200)
        rows = [shared | {"split": "train", "loss": loss, "objective": loss, "lr": job["rate"], "grad_norm": 1.0}]
        return rows + [
            shared | {"split": split, "loss": loss + 0.1, self.metric: self.value(job, step, split)} for split in splits
        ]

    def value(self, job: dict[str, Any], step: int, split: str) -> float:
        """Return the stored metric of a run at a step: its norm's level, worse away from the best rate and early on."""
        fraction = self.metric not in ("bleu", "loss")
        scale, sign = (100 if fraction else 1), (1 if self.mode == "min" else -1)
        distance = math.log2(job["rate"] / self.best[job["norm"]])
        seed = 0.5 * math.sin(7.0 * job["seed"]) + 0.2 * math.sin(3.0 * job["seed"] + 5 * len(job["norm"]))
        noise = 0.1 * math.sin(step + job["seed"] + len(split))
        early = (40 if self.mode == "min" else self.level[job["norm"]]) * math.exp(-step / 150)
        split_gap = 0.0 if split == "test" else -0.7
        split_gap += self.gain * (split == "interim") * (1 - step / STEPS) * 5
        return (self.level[job["norm"]] + sign * (0.8 * distance**2 + early + split_gap) + seed + noise) / scale


def write_timing(root: Path, task: str, norms: Sequence[str] = ("ln", "rms", "none"), **changes: object) -> Path:
    """Write an interleaved timing record in which LN takes 120 ms per step, and each next norm 10 ms less.

    ``changes`` replace keys of ``timing.json``.
    """
    folder = root / task / "small" / "timing" / "steps0"
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "task": task,
        "setting": "small",
        "scale": "small",
        "kind": "steps",
        "reference": norms[0],
    }
    content |= {
        "stopped": "narrow",
        "data_seconds": 0.001,
        "steps_per_block": 3,
        "dataset": {"digest": "0", "builtin": False},
    }
    session = {"device": "AMD EPYC", "threads": 1, "versions": {"torch": "2.15.0"}, "started": "2026-11-22T10:00:00"}
    content["session"] = session | {"contention": {"state": "clear"}}
    content["series"] = [
        {"series": norm, "impl": "fused", "seconds": [0.12 - 0.01 * number] * 4, "parts": {}, "peak_bytes": None}
        for number, norm in enumerate(norms)
    ]
    path = folder / "timing.json"
    atomic.write_json(path, content | changes)
    return path


def three() -> list[Campaign]:
    """Return campaigns of three tasks; the last is not finished."""
    recall = Campaign(
        name="quality_order_embedding",
        task="order_embedding",
        metric="image_recall",
        mode="max",
        level={"none": 18.0, "ln": 22.0, "rms": 22.7, "prms+p=0.5": 20.1},
        best={"none": 0.002, "ln": 0.004, "rms": 0.004, "prms+p=0.5": 0.002},
        claims=(EQUAL | {"margin": 0.75}, BETTER, NOT_WORSE | {"margin": 0.75}),
        diverged={("none", 2)},
    )
    translation = Campaign(
        name="quality_rnnsearch",
        task="rnnsearch",
        metric="bleu",
        mode="max",
        level={"none": 22.0, "ln": 33.0, "rms": 32.7},
        claims=(EQUAL | {"margin": 1.0}, BETTER),
        gone={(norm, seed) for norm in ("none", "ln", "rms") for seed in range(4, 8)},
        needed=None,
    )
    return [Campaign(), recall, translation]


def loaded(root: Path, **changes: Any) -> campaign_results.Campaign:
    """Write a campaign with these changes, and return it as it is read, with the results of its runs."""
    return campaign_results.load(Campaign(**changes).write(root))
