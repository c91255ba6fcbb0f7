"""Whole runs of the attentive reader and order-embedding: the best checkpoint, mistakes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.reading_and_retrieval import TASKS, tiny
from helpers.tasks import Main

from rmsexp.commands import result
from rmsexp.data import Report
from rmsexp.records import record
from rmsexp.tasks import attentive_reader as reader
from rmsexp.tasks import order_embedding as retrieval

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


@pytest.mark.parametrize(("name", "sources"), [(TASKS[0], reader.SOURCES), (TASKS[1], retrieval.SOURCES)])
def test_a_run_is_not_continued_with_other_ids_of_words(
    main: Main, monkeypatch: pytest.MonkeyPatch, name: str, sources: dict[str, Any]
) -> None:
    """As if another version of the package had given other ids to the words of the same data."""
    words = tiny(name)
    assert main(*words, "max_steps=1").status == 0
    builtin = {TASKS[0]: "stories", TASKS[1]: "scenes"}[name]
    source = sources[builtin]()

    def load(report: Report) -> Any:
        content = source.load(report)
        return replace(content, words=content.words[::-1])

    monkeypatch.setitem(sources, builtin, lambda *_: replace(source, load=load))
    done = main(*words)
    done.assert_failed("/seed0 was trained with other words than those that are now in data.root")


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
        (TASKS[0], "data.name=top4", "/data/top4 there is no dict.pkl, "),
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
