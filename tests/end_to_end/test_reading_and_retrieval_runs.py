"""Whole runs of the attentive reader and order-embedding: mistakes."""

from pathlib import Path

import pytest
from helpers.reading_and_retrieval import TASKS, tiny
from helpers.tasks import Main

from rmsexp.records import record

pytestmark = pytest.mark.usefixtures("small_synthetic_data")


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
