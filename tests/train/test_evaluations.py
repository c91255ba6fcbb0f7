"""When a run evaluates its model, on what, and that test splits are never evaluated in tuning."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rmsexp import config
from rmsexp.config import score
from rmsexp.records import record
from rmsexp.task import INTERIM, WHOLE, Extent
from rmsexp.train.loop import evaluated_after, evaluated_at
from rmsexp.work import runner

TINY = (
    *("task=order_embedding", "model.embedding=4", "model.hidden=4", "batch_size=8", "data.valid_images=20"),
    *("schedule.steps=40", "threads=1", "device=cpu", "log_every=20", "checkpoint_every=4"),
)


def every(steps: int) -> Any:
    return SimpleNamespace(evaluation=None, eval_every=steps)


def scored(steps: int, test: bool = True) -> Any:
    """Return a config with a schedule of this many steps. ``test``: whether test splits are evaluated."""
    return SimpleNamespace(evaluation="scored" if test else "validation", schedule=SimpleNamespace(steps=steps))


def plan(cfg: Any, steps: int) -> dict[int, list[Extent]]:
    """Return the evaluations of a run of this many steps, by step, as the trainer finds them."""
    found, step = {}, 0
    while step < steps:
        step = min(steps, evaluated_after(cfg, step))
        found[step] = list(evaluated_at(cfg, step, step == steps))
    return found


def test_every_evaluates_all_splits_at_its_interval_and_at_the_end() -> None:
    assert plan(every(30), 100) == {30: [WHOLE], 60: [WHOLE], 90: [WHOLE], 100: [WHOLE]}
    assert list(evaluated_at(every(30), 31, last=False)) == []


@pytest.mark.parametrize("test", [True, False])
@pytest.mark.parametrize("steps", [20, 1500, 1234])
def test_scored_runs_have_twenty_evaluations_of_which_three_are_whole(steps: int, test: bool) -> None:
    found = plan(scored(steps, test), steps)
    points = [round(number * steps / 20) for number in range(1, 21)]
    assert list(found) == points == score.steps(steps)
    assert all(found[step] == [INTERIM] for step in points[:-3])
    assert all(found[step] == [INTERIM, Extent(test=test)] for step in points[-3:])


def test_a_scored_run_that_ends_early_or_late_is_evaluated_whole_at_its_end() -> None:
    assert plan(scored(40), 11)[11] == [INTERIM, WHOLE]
    assert plan(scored(40), 70)[70] == [INTERIM, WHOLE]
    assert 40 in plan(scored(40), 70)


def test_an_interim_evaluation_never_covers_test_splits() -> None:
    assert not INTERIM.test
    assert (INTERIM.split, WHOLE.split) == ("interim", "valid")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("evaluation", ["evaluation=score"]),
        ("schedule.steps", ["evaluation=scored", "schedule.steps=19", "schedule.period=1"]),
        ("data.validation", ["task=cifar10", "evaluation=scored"]),
    ],
)
def test_evaluations_that_do_not_fit_are_refused(key: str, words: list[str]) -> None:
    with pytest.raises(config.ConfigError, match=key):
        config.job(words)


def splits_by_step(folder: Path) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for line in (folder / record.METRICS).read_text().splitlines():
        row = json.loads(line)
        if row["split"] != "train":
            found.setdefault(row["step"], set()).add(row["split"])
    return found


@pytest.mark.usefixtures("small_synthetic_data")
@pytest.mark.parametrize("evaluation", ["scored", "validation"])
def test_the_splits_in_the_record(evaluation: str, tmp_path: Path) -> None:
    job = config.job([*TINY, f"evaluation={evaluation}", f"results={tmp_path}"])
    assert runner.execute(job).status == "finished"
    found = splits_by_step(job.folder)
    whole = {"interim", "valid", "test"} if evaluation == "scored" else {"interim", "valid"}
    assert list(found) == score.steps(40)
    assert [found[step] for step in score.steps(40)] == [{"interim"}] * 17 + [whole] * 3
    assert json.loads((job.folder / record.RUN).read_text())["evaluation"] == evaluation
    best = torch.load(job.folder / record.CHECKPOINTS / "best.pt", weights_only=True)
    assert best["step"] in score.steps(40)[-3:]  # interim evaluations do not choose the best model
