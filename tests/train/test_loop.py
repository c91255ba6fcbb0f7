"""The training loop: what it shows, how often it asks for batches, when it evaluates, and what it keeps."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.slopes import IDENTITY, SLOPES, slopes_trainer
from torch import nn

from rmsexp import config
from rmsexp.config import score
from rmsexp.records import record
from rmsexp.task import SAMPLE, WHOLE, Extent
from rmsexp.train import checkpoint
from rmsexp.train.loop import evaluated_at, restore
from rmsexp.train.progress import ProgressDisplay
from rmsexp.work import runner


def test_the_speed_shown_is_that_of_this_process(tmp_path: Path) -> None:
    """After a run is continued, the seconds of earlier processes do not lower the steps per second."""
    first, _ = slopes_trainer(SLOPES[:2], tmp_path, nn.Linear(3, 1))
    first.clock.seconds["train"] = 1e6
    first.run()
    speeds, left = list[float](), list[float]()
    display = Mock(spec=ProgressDisplay)
    display.update = lambda _, rates, seconds: (speeds.extend(rates.values()), left.append(seconds))
    slopes_trainer(SLOPES, tmp_path, nn.Linear(3, 1), display=display)[0].run()
    assert len(speeds) == 4  # of steps and predictions, in two rows
    assert all(speed > 0.01 for speed in speeds)
    assert speeds[::2] == speeds[1::2]  # each step makes one prediction
    assert left[-1] == 0


def test_a_complete_run_takes_no_further_step(tmp_path: Path) -> None:
    """Continuing a run at its last step does not even warm up."""
    slopes_trainer(SLOPES, tmp_path, nn.Linear(3, 1))[0].run()
    trainer, _ = slopes_trainer(SLOPES, tmp_path, nn.Linear(3, 1))
    steps: list[int] = []
    trainer.task.batches = steps.append
    trainer.run()
    assert not steps


def test_the_best_model_of_a_step_that_is_dropped_is_replaced(tmp_path: Path) -> None:
    """The run crashes after its best evaluation, at step 3, and continues from step 2 with another interval."""
    losses = [3.0, 2.0, 2.0, 1.0]  # of the evaluations up to step 3; that of step 4 crashes
    trainer, files = slopes_trainer(SLOPES, tmp_path, nn.Linear(3, 1))
    trainer.config.eval_every, trainer.config.checkpoint_every = 1, 2
    trainer.task.evaluate = lambda *_: {"test": {"loss": losses.pop(0)}}
    with pytest.raises(IndexError):
        trainer.run()
    best = files.checkpoints / checkpoint.BEST
    assert checkpoint.read(best)["step"] == 3

    trainer, _ = slopes_trainer(SLOPES, tmp_path, nn.Linear(3, 1))
    assert trainer.state.step == 2
    trainer.task.evaluate = lambda *_: {"test": {"loss": 2.5}}
    trainer.run()
    payload = checkpoint.read(best)
    assert (payload["step"], payload["loss"], trainer.state.best) == (4, 2.5, 2.5)


def test_the_best_model_of_the_last_checkpoint_stays_until_a_better_one(tmp_path: Path) -> None:
    for slopes, losses in (
        (SLOPES[:2], [3.0, 2.0, np.float64(1.0)]),
        (SLOPES, [1.0, 2.0]),
    ):  # the second run continues the first
        trainer, files = slopes_trainer(slopes, tmp_path, nn.Linear(3, 1))
        trainer.config.eval_every, trainer.config.checkpoint_every = 1, 2
        trainer.task.evaluate = lambda *_, losses=losses: {"test": {"loss": losses.pop(0)}}
        trainer.run()
        payload = checkpoint.read(files.checkpoints / checkpoint.BEST)
        assert (payload["step"], payload["loss"]) == (2, 1.0)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"damaged")])
def test_a_best_model_that_cannot_be_used_is_replaced_by_the_next_evaluation(
    damage: Callable[[Path], object], tmp_path: Path
) -> None:
    trainer, files = slopes_trainer(SLOPES[:2], tmp_path, nn.Linear(3, 1))
    trainer.config.eval_every, trainer.config.checkpoint_every = 1, 2
    trainer.task.evaluate = lambda *_: {"test": {"loss": 1.0}}
    trainer.run()
    best = files.checkpoints / checkpoint.BEST
    damage(best)

    trainer, _ = slopes_trainer(SLOPES, tmp_path, nn.Linear(3, 1))
    warnings: list[str] = []
    restore(trainer._stepper, files, IDENTITY, 3, warnings.append)
    _, replaced = warnings  # the checkpoint is older than step 3, and the best model cannot be used
    assert str(best) in replaced
    losses = [0.5, 2.0]  # at step 3 and 4
    trainer.config.eval_every = 1
    trainer.task.evaluate = lambda *_: {"test": {"loss": losses.pop(0)}}
    trainer.run()
    assert checkpoint.read(best)["step"] == 3
    assert checkpoint.read(best)["loss"] == trainer.state.best == 0.5


def test_the_values_of_a_step_do_not_hold_its_graph(tmp_path: Path) -> None:
    """The values that wait for the next training row would otherwise keep the activations of all steps in memory."""
    trainer, _ = slopes_trainer(SLOPES, tmp_path, nn.Linear(3, 1))
    assert not trainer._update(0, trainer.task.batches(0)).values.requires_grad


# --- evaluations: when, on what, and that test splits are never evaluated in tuning


TINY = (
    *("task=order_embedding", "model.embedding=4", "model.hidden=4", "batch_size=8", "data.valid_images=20"),
    *("schedule.steps=40", "threads=1", "device=cpu", "log_every=20", "checkpoint_every=4"),
)


def plan(cfg: Any, steps: int) -> dict[int, list[Extent]]:
    """Return the evaluations of a run of this many steps, by step, as the trainer finds them."""
    found = {step: list(evaluated_at(cfg, step, step == steps)) for step in range(1, steps + 1)}
    return {step: extents for step, extents in found.items() if extents}


def test_every_evaluates_all_splits_at_its_interval_and_at_the_end() -> None:
    every = SimpleNamespace(evaluation=None, eval_every=30)
    assert plan(every, 100) == {30: [WHOLE], 60: [WHOLE], 90: [WHOLE], 100: [WHOLE]}
    assert list(evaluated_at(every, 31, last=False)) == []


def test_a_scored_run_that_ends_early_or_late_is_evaluated_whole_at_its_end() -> None:
    scored = SimpleNamespace(evaluation="scored", schedule=SimpleNamespace(steps=40))
    assert plan(scored, 11)[11] == plan(scored, 70)[70] == [SAMPLE, WHOLE]
    assert 40 in plan(scored, 70)


@pytest.mark.usefixtures("small_synthetic_data")
@pytest.mark.parametrize("evaluation", ["scored", "validation"])
def test_the_splits_in_the_record(evaluation: str, tmp_path: Path) -> None:
    job = config.job([*TINY, f"evaluation={evaluation}", f"results={tmp_path}"])
    assert runner.execute(job).status == "finished"
    found: dict[int, set[str]] = {}
    for row in record.RunFolder(job.folder).read_metrics()[0]:
        if row["split"] != "train":
            found.setdefault(row["step"], set()).add(row["split"])
    whole = {"valid_sample", "valid", "test"} if evaluation == "scored" else {"valid_sample", "valid"}
    assert list(found) == score.steps(40)
    assert [found[step] for step in score.steps(40)] == [{"valid_sample"}] * 17 + [whole] * 3
    assert json.loads((job.folder / record.RUN).read_text())["evaluation"] == evaluation
    best = torch.load(job.folder / record.CHECKPOINTS / "best.pt", weights_only=True)
    assert best["step"] in score.steps(40)[-3:]  # evaluations on the sample do not choose the best model
