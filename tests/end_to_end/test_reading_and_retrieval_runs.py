"""Whole runs of the attentive reader and order-embedding: the best checkpoint, mistakes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.reading_and_retrieval import TASKS, tiny
from helpers.tasks import Main

from rmsexp.commands import result
from rmsexp.records import record

pytestmark = pytest.mark.usefixtures("small_synthetic_data")


@pytest.mark.parametrize(("name", "metric", "best"), [(TASKS[0], "error", min), (TASKS[1], "image_recall", max)])
def test_the_best_checkpoint_has_the_best_metric_on_valid(
    main: Main, tmp_path: Path, name: str, metric: str, best: Any
) -> None:
    done = main(*tiny(name), "optim.lr=0.3", "max_steps=8", "eval_every=1")
    assert done.status == 0, done.err
    (folder,) = record.find_runs(tmp_path)
    values = [row[metric] for row in result.read(folder).metrics if row["split"] == "valid"]
    stored = torch.load(folder / record.CHECKPOINTS / "best.pt", weights_only=True)
    assert len(set(values)) > 1
    assert (stored["step"], stored[metric]) == (values.index(best(values)), best(values))


# Mistakes


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        (TASKS[1], "norm=bn norm.everywhere=true", "no effect on this task: the model has no layers that only"),
        (
            TASKS[0],
            "norm=bn norm.min_examples=11",
            "in recurrences norm=bn needs norm.min_examples=11 examples in each",
        ),
        (TASKS[1], "norm=bn micro_batches=2", "and batch_size=9 with micro_batches=2 gives 4; change one of these"),
        (TASKS[1], "norm=bn norm.eval=batch", "norm.eval=batch is not possible: results would depend"),
        (TASKS[0], "norm=ln norm.axes=[1,2,3]", "no effect on this task: its model has no feature maps"),
        (TASKS[0], "data.name=cnn", "CNN is incomplete: in "),
        (TASKS[1], "data.name=coco", "there is no"),
        (TASKS[1], "data.name=flickr8k", "there is no"),
    ],
)
def test_what_does_not_fit_the_norm_the_task_or_the_data_is_refused(
    main: Main, tmp_path: Path, name: str, words: str, message: str
) -> None:
    done = main(*tiny(name), *words.split())
    done.assert_failed(message)
    assert done.status == 1
    assert not list(tmp_path.rglob(record.CHECKPOINTS))
