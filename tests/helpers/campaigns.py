"""Synthetic campaigns: their files and the records of their runs, with chosen scores."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rmsexp.campaign import campaign_file, question
from rmsexp.campaign import results as campaign_results
from rmsexp.campaign.campaign_file import CampaignFile, Job, Metric, Registration, Seeds
from rmsexp.campaign.question import Question
from rmsexp.config import score
from rmsexp.records import record
from rmsexp.records.frames import names
from rmsexp.rules import selection
from rmsexp.rules.claims import Claim
from rmsexp.system import atomic, clock
from rmsexp.train import provenance

STEPS = 1000
TUNING = (1000, 1001, 1002)  # seeds
EQUAL = {"claim": "RMSNorm equals LayerNorm", "test": "equivalence", "a": "rms", "b": "ln", "margin": 1.5}
BETTER = {"claim": "RMSNorm is better than no norm", "test": "superiority", "a": "rms", "b": "none"}
NOT_WORSE = {"claim": "pRMSNorm is not worse than RMSNorm", "test": "noninferiority", "a": "prms+p=0.5", "b": "rms"}


def write_record(
    root: Path,
    job: Job,
    metric: str,
    value: Callable[[int, str], float],
    *,
    mode: str = "min",
    total: int = STEPS,
    status: str = "finished",
    pace: Mapping[str, float] = {"train": 0.1, "eval": 0.01},
    **session: Any,
) -> record.RunFolder:
    """Write the record of a campaign's run below ``root``; one that has not finished ends after half of the steps.

    ``value``: the metric at a step on a split, in the displayed unit; NaN is null in JSON. ``pace``: seconds per step
    by bucket of the clock. ``session`` replaces values of the only session.
    """
    files = record.RunFolder(root / job.folder)
    files.path.mkdir(parents=True, exist_ok=True)
    task, setting, series, _ = job.folder.split("/")
    is_final = job.stage == "final"
    shared = {"from_step": 0, "git": {"commit": "abc", "dirty": False}, "versions": {"torch": "2.15.0"}}
    shared |= {"device": "AMD EPYC", "threads": 1, "contention": {"state": "disturbed"}}
    run = {"task": task, "norm": series.split("+")[0], "scale": "small", "seed": job.seed, "setting": setting}
    run |= {"format": 1, "series": series, "impl": "fused", "recipe_steps": total}
    run |= {"evaluation": "scored" if is_final else "validation", "sessions": [shared | session]}
    run |= {"target": {"split": "test", "metric": metric, "mode": mode, "selection": "valid"}}
    run |= {
        "dataset": {"name": "real data", "digest": "0", "builtin": False},
        "parameters": {"total": 1, "modules": {}},
    }
    files.run_path.write_text(json.dumps(run))  # faster than atomic writes of so many files
    files.config_path.write_text(f"optim: {{lr: {job.rate}}}\n")
    last = total if status == "finished" else total // 2
    files.status_path.write_text(json.dumps({"status": status, "step": last, "error": None}))
    rows = list[record.Row]()
    for step in (step for step in score.steps(total) if step <= last):
        seconds = {bucket: pace.get(bucket, 0.0) * step for bucket in clock.BUCKETS}
        row = {"step": step, "epoch": step / 500, "examples": 50 * step, "seconds": seconds}
        loss = 0.4 + 2 * math.exp(-step / 200)
        rows.append(row | {"split": "train", "loss": loss, "objective": loss, "lr": job.rate, "grad_norm": 1.0})
        whole = ["valid", "test"] if is_final else ["valid"]
        for split in ["valid_sample", *(whole if step in score.steps(total)[-score.SCORED :] else [])]:
            found = value(step, split) / names.scale_and_unit(metric)[0]
            rows.append(row | {"split": split, "loss": loss + 0.1, metric: None if math.isnan(found) else found})
    files.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return files


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
        lost: norms that diverge at every rate.
        rules: the version of the rules: 1 for rates an octave apart, 3 for today's.
        setting: the scale of all runs, and the options that they share.
        changes: keys of ``campaign.json`` that are replaced.
    """

    name: str = "quality_cifar10"
    task: str = "cifar10"
    metric: str = "error"
    mode: Any = "min"
    level: Mapping[str, float] = field(default_factory=lambda: {"none": 24.0, "ln": 16.0, "rms": 16.1})
    best: Mapping[str, float] = field(default_factory=lambda: {"none": 0.002, "ln": 0.004, "rms": 0.004})
    grid: Sequence[float] = (0.001, 0.002, 0.004, 0.008)
    seeds: int = 8
    needed: int | None = 8
    claims: Sequence[dict[str, Any]] = (EQUAL, BETTER)
    gone: set[tuple[str, int]] = field(default_factory=set)
    diverged: set[tuple[str, int]] = field(default_factory=set)
    lost: Sequence[str] = ()
    commits: Sequence[str] = ("abc",)
    rules: int = 3
    setting: str = "small"
    changes: Mapping[str, Any] = field(default_factory=dict)

    def write(self, root: Path) -> Path:
        """Write the file and the runs below ``root``; return the file's path."""
        for job in [*self.tune(), *self.final()]:
            key = job.norm, job.seed
            if key not in self.gone:
                status = "diverged" if key in self.diverged or job.norm in self.lost else "finished"
                git = {"commit": self.commits[job.seed % len(self.commits)], "dirty": False}
                value = self._value(job)
                write_record(root, job, self.metric, value, mode=self.mode, status=status, git=git)
        return self.write_file(root)

    def write_file(self, root: Path) -> Path:
        """Write the file without any runs below ``root``; return its path."""
        path = root / "campaigns" / self.name / "campaign.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        claims = tuple(Claim(**claim) for claim in self.claims)
        norms, grid = tuple(self.level), tuple(self.grid)
        metrics = {"tuned_by": Metric("valid", self.metric), "score": Metric("test", self.metric)}
        rules = {"claims": [asdict(claim) for claim in claims], "norms": norms, "grid": grid, **metrics}
        registered = Registration(record.digest_of_values(rules), self.commits[0], "2026-11-22T00:00:00+00:00")
        atomic.write_json(path.with_name(campaign_file.REGISTRATION), registered._replace(rules=rules)._asdict())
        file = CampaignFile(
            name=self.name,
            question=f"Does RMSNorm match LayerNorm on {self.task}?",
            command=(self.name,),
            runs={"task": self.task, "scale": "small"},
            rate="optim.lr",
            mode=self.mode,
            norms=norms,
            grid=grid,
            **metrics,
            rules=self.rules,
            seeds=Seeds(TUNING, self.seeds, 16, self.needed),
            claims=claims,
            jobs=(*self.tune(), *self.final()),
            registered=registered,
        )
        atomic.write_json(path, json.loads(campaign_file.text(file)) | dict(self.changes))
        return path

    def tune(self) -> list[Job]:
        """Return the tuning runs that the rules ask for if the scores are those of the formula."""
        if self.rules > 1 and len(self.grid) == 1:
            return []
        values: dict[str, dict[float, dict[int, float]]] = {norm: {} for norm in self.best}
        while runs := selection.tune(self.grid, values, self.mode, TUNING, campaign_file.TUNING[self.rules]).runs:
            for run in runs:
                value = self._value(self._job("tune", *run))
                mean = sum(value(step, "valid") for step in score.steps(STEPS)[-3:]) / 3
                values[run.norm].setdefault(run.rate, {})[run.seed] = math.nan if run.norm in self.lost else mean
        return [
            self._job("tune", norm, rate, seed)
            for norm, tried in values.items()
            for rate, seeds in sorted(tried.items())
            for seed in sorted(seeds)
        ]

    def final(self) -> list[Job]:
        rates = {norm: rate for norm, rate in self.best.items() if norm not in self.lost}
        return [self._job("final", norm, rate, seed) for norm, rate in rates.items() for seed in range(self.seeds)]

    def _job(self, stage: Any, norm: str, rate: float, seed: int) -> Job:
        setting = f"{self.setting}+evaluation={'scored' if stage == 'final' else 'validation'}+optim.lr={rate:g}"
        return Job(stage, norm, rate, seed, f"{self.task}/{setting}/{norm}/seed{seed}")

    def _value(self, job: Job) -> Callable[[int, str], float]:
        """Return the metric of a run by step and split: its norm's level, worse away from the best rate and early."""
        level, distance = self.level[job.norm], math.log2(job.rate / self.best[job.norm])
        seed = 0.5 * math.sin(7.0 * job.seed) + 0.2 * math.sin(3.0 * job.seed + 5 * len(job.norm))

        def value(step: int, split: str) -> float:
            noise = 0.1 * math.sin(step + job.seed + len(split))
            early = (40 if self.mode == "min" else level) * math.exp(-step / 150)
            gap = 0.0 if split == "test" else -0.7
            return level + (1 if self.mode == "min" else -1) * (0.8 * distance**2 + early + gap) + seed + noise

        return value


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


# --- campaigns that are asked for by a file of configs

# Runs of a second. Their setting is not in tests of anything else.
RUNS = {
    "task": "order_embedding",
    "scale": "demo",
    "model.hidden": 8,
    "model.embedding": 8,
    "batch_size": 8,
    "schedule.steps": 20,
    "data.valid_images": 20,
    "log_every": 10,
    "checkpoint_every": 4,
}
CONTENT: dict[str, Any] = {
    "question": "Is RMSNorm as good as LayerNorm?",
    "runs": RUNS,
    "norms": ["ln", "rms"],
    "tune": {"over": {"optim.lr": [1.0e-3, 2.0e-3, 4.0e-3]}},
    "rules": 1,
    "final": {"min_seeds": 2, "max_seeds": 4},
    "claims": [EQUAL | {"margin": 5}],
}


def write_config(folder: Path, **changes: Any) -> str:
    """Write the file of the campaign tiny below ``folder``, a folder of configs, which is returned.

    ``changes`` replace its keys; None removes one.
    """
    path = folder / "campaign/tiny.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({key: value for key, value in (CONTENT | changes).items() if value is not None}))
    return str(folder)


def ask(folder: Path, *words: str, **changes: Any) -> Question:
    """Return the campaign tiny, whose file is written, with results in ``folder``."""
    return question.read("tiny", [f"results={folder / 'results'}", *words], write_config(folder / "configs", **changes))


def write_run(asked: Question, job: Job, value: float = 20.0, **changes: Any) -> record.RunFolder:
    """Write the record of a run with this score on all splits; it diverged if that is NaN.

    Each bucket of the clock has a second a step. ``changes``: as for :func:`write_record`.
    """
    shared = {"status": "diverged" if math.isnan(value) else "finished", "total": asked.recipe.config.schedule.steps}
    shared |= {"pace": dict.fromkeys(clock.BUCKETS, 1.0), "machine": {"id": provenance.machine_id()}}
    shared |= {"contention": {"waited": 0.0}, "mode": asked.target.mode}
    metric = asked.campaign.score.metric
    return write_record(asked.results, job, metric, lambda *_: value, **shared | changes)


def do(asked: Question, values: Callable[[Job], float], stages: Mapping[str, int] | None = None) -> list[list[Job]]:
    """Do all runs that the campaign asks for, round by round, and return the rounds.

    ``values``: the score of a run; NaN if it diverges. ``stages``: how many rounds of a stage are done at most.
    """
    rounds: list[list[Job]] = []
    while True:
        missing = asked.update().left
        done = [round_[0].stage for round_ in rounds]
        if not missing or (stages is not None and done.count(missing[0].stage) >= stages.get(missing[0].stage, 0)):
            return rounds
        assert missing not in rounds, "the runs that were written do not count"
        for job in missing:
            write_run(asked, job, values(job))
        rounds.append(missing)
