"""Small campaigns: their files, and records of their runs with chosen results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from rmsexp.campaign import question
from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.question import Question
from rmsexp.config import score
from rmsexp.records import record
from rmsexp.system import clock
from rmsexp.train import provenance

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
EQUAL = {"claim": "RMSNorm equals LayerNorm", "test": "equivalence", "a": "rms", "b": "ln", "margin": 5}
CONTENT: dict[str, Any] = {
    "question": "Is RMSNorm as good as LayerNorm?",
    "runs": RUNS,
    "norms": ["ln", "rms"],
    "tune": {"over": {"optim.lr": [1.0e-3, 2.0e-3, 4.0e-3]}},
    "rules": 1,
    "final": {"min_seeds": 2, "max_seeds": 4},
    "claims": [EQUAL],
}
Values = Callable[[Job], float]  # the score of a run in percent; NaN if it diverges


def write_file(folder: Path, name: str = "tiny", **changes: Any) -> str:
    """Write the file of a campaign below ``folder``, a folder of configs, which is returned. None removes a key."""
    path = folder / "campaign" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {key: value for key, value in (CONTENT | changes).items() if value is not None}
    path.write_text(yaml.safe_dump(content))
    return str(folder)


def ask(folder: Path, *words: str, **changes: Any) -> Question:
    """Return a campaign whose file is written, with results in ``folder``."""
    return question.read("tiny", [f"results={folder / 'results'}", *words], write_file(folder / "configs", **changes))


def write_run(
    asked: Question, job: Job, percent: float = 20.0, status: str | None = None, **changes: Any
) -> record.RunFolder:
    """Write the record of a run with this score, in percent, on all splits; it diverged if that is NaN.

    Each bucket of the clock has a second a step. ``changes`` replace values of its only session.
    """
    files = record.RunFolder(asked.results / job.folder)
    files.path.mkdir(parents=True, exist_ok=True)
    total = asked.recipe.config.schedule.steps
    task, setting, series, _ = job.folder.split("/")
    session = {"from_step": 0, "git": {"commit": "abc", "dirty": False}, "contention": {"waited": 0.0}}
    session |= {"machine": {"id": provenance.machine_id()}} | changes
    run = {"task": task, "setting": setting, "series": series, "seed": job.seed, "recipe_steps": total}
    run |= {"target": {"metric": asked.target.metric, "mode": asked.target.mode}}
    (files.run_path).write_text(json.dumps(run | {"dataset": {"digest": "0"}, "sessions": [session]}))
    diverged = percent != percent
    state = status or ("diverged" if diverged else "finished")
    steps = total // 2 if diverged else total
    files.status_path.write_text(json.dumps({"status": state, "step": steps, "error": None}))
    rows = [row for step in score.steps(total) if step <= steps for row in _rows(job, step, total, percent / 100)]
    files.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return files


def _rows(job: Job, step: int, total: int, value: float) -> list[record.Row]:
    splits = ["interim"]
    if step in score.steps(total)[-score.SCORED :]:
        splits += ["valid", "test"] if job.stage == "final" else ["valid"]
    seconds = dict.fromkeys(clock.BUCKETS, 1.0 * step)
    return [
        {"step": step, "split": split, "image_recall": None if value != value else value, "seconds": seconds}
        for split in splits
    ]


def do(asked: Question, values: Values, stages: Mapping[str, int] | None = None) -> list[list[Job]]:
    """Do all runs that the campaign asks for, round by round, and return the rounds.

    ``stages``: how many rounds of a stage are done at most.
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
