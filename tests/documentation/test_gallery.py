"""The gallery: each norm is short, has a config, trains on tasks of several kinds, and can be continued."""

import json
from pathlib import Path

import pytest
import torch
from helpers import documents
from helpers.stopping import evaluate_few_images

import rmsexp
from rmsexp import config
from rmsexp.campaign import question
from rmsexp.models import init
from rmsexp.models.language_model import LanguageModel, Sizes
from rmsexp.train.randomness import stream

GALLERY = documents.ROOT / "docs/gallery"
NAMES = sorted(path.stem for path in GALLERY.glob("*.py"))
# tasks whose vectors, feature maps or recurrences a norm is not written for
TASKS = ("language_model", "cifar10", "order_embedding")
VECTORS_ONLY = ("fading", "group_rms", "krmsnorm", "seednorm")
SMALL = {
    "language_model": {"model.width": 32, "model.layers": 2, "model.inner": 48, "model.heads": 2, "model.kv_heads": 2},
    "cifar10": {"model.width": 0.05},
    "order_embedding": {"model.embedding": 32, "batch_size": 16},
}


def test_each_is_short_and_names_its_source() -> None:
    assert len(NAMES) >= 9
    composed = {"dyt_tuned", "derf_tuned"}  # of the package's norms
    assert {path.stem for path in GALLERY.glob("norm/*.yaml")} == {*NAMES} | composed
    for name in NAMES:
        text = (GALLERY / f"{name}.py").read_text()
        assert len(text.splitlines()) <= 40
        assert name == "dyisru" or "arXiv" in text or "(" in text.splitlines()[0]


@pytest.mark.usefixtures("small_synthetic_data")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("task", TASKS)
def test_each_trains(task: str, name: str, tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate_few_images(monkeypatch)
    options = {"results": tmp_path, "max_steps": 2, "eval_every": 2, "device": "cpu", "threads": 1}
    options |= {"data.root": data_root}
    refusal = "feature maps" if name in VECTORS_ONLY else "has an add, but" if name == "deepnorm" else ""
    if refusal and (task == "cifar10" or (name == "deepnorm" and task == "order_embedding")):
        with pytest.raises(RuntimeError, match=refusal):
            rmsexp.run(task, name, config_dir=str(GALLERY), quiet=True, **SMALL[task], **options)
        return
    found = rmsexp.run(task, name, config_dir=str(GALLERY), quiet=True, **SMALL[task], **options)
    assert found.status["status"] == "finished"


@pytest.mark.usefixtures("small_synthetic_data")
def test_the_norm_that_knows_the_step_is_continued_bit_by_bit(tmp_path: Path) -> None:
    options = {**SMALL["language_model"], "norm.begin": 1, "norm.end": 5, "checkpoint_every": 2, "log_every": 1}
    options |= {"device": "cpu", "threads": 1, "micro_batches": 2, "schedule.steps": 6, "schedule.warmup": 2}
    rows = []
    for name, stops in (("whole", [6]), ("cut", [2, 4, 6])):
        for stop in stops:
            values = {**options, "results": tmp_path / name, "max_steps": stop}
            found = rmsexp.run("language_model", "fading", config_dir=str(GALLERY), quiet=True, **values)
        rows.append([json.dumps({**row, "seconds": 0}) for row in found.metrics if row["split"] == "train"])
    assert rows[0] == rows[1]
    assert config.options("norm", str(GALLERY))


def test_deepnorm_scales_the_weights_of_values_but_not_those_of_queries_and_keys() -> None:
    models = []
    for name in ("ln", "deepnorm"):
        norm = config.job([f"norm={name}"], str(GALLERY)).norm
        models.append(LanguageModel(norm, 5, Sizes(width=16, layers=2, heads=4, kv_heads=2, inner=12)))
        init.initialise(models[-1], init.lecun_normal, lambda name: stream(0, name))
    plain, ours = (model.layers[0] for model in models)
    rows = (ours.attention.joint.weight / plain.attention.joint.weight).mean(1)
    torch.testing.assert_close(rows, torch.tensor([1.0] * (16 + 8) + [0.5] * 8))  # 16^(-1/4) = 0.5
    torch.testing.assert_close(ours.feed_forward.up.weight, plain.feed_forward.up.weight / 2)


@pytest.mark.parametrize("path", sorted(GALLERY.glob("campaign/*.yaml")), ids=lambda path: path.stem)
def test_each_campaign_can_be_planned(path: Path, tmp_path: Path) -> None:
    asked = question.read(path.stem, [f"results={tmp_path}"], str(GALLERY))
    assert {job.norm for job in asked.plan().left} == {*asked.content.norms}
    assert all(asked.composed(asked.words_of(job)).config.scale == "medium" for job in asked.plan().left)
