"""The configs of the tasks: the eps that norms take from them, and the published results in their headers."""

from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import language_models, reading_and_retrieval, translation_tasks
from helpers.tasks import assert_batches_follow_from_seed_and_step, task_and_model
from torch import Tensor

from rmsexp import config, tasks
from rmsexp.records.frames import quantities
from rmsexp.task import Target

TASKS = config.options("task")
# --- the task's eps


@pytest.mark.parametrize(
    ("task", "eps", "norms"),
    [("transformer", 1e-8, ("ln", "nonparametric_ln", "prms", "l2")), ("cifar10", 1e-6, ("rms",))],
)
def test_norms_take_the_eps_of_the_task(task: str, eps: float, norms: tuple[str, ...]) -> None:
    for norm in norms:
        assert config.job([f"task={task}", f"norm={norm}"]).norm.eps == eps
    assert config.job([f"task={task}", "norm=rms", "norm.eps=0.5"]).series == "rms+eps=0.5"
    assert config.job([f"task={task}", "norm=rms", f"norm.eps={eps}"]).series == "rms"


def test_other_norms_have_an_eps_of_their_own() -> None:
    expected = {"bn": 1e-5, "wn": 0.0}
    assert {norm: config.job(["task=transformer", f"norm={norm}"]).norm.eps for norm in expected} == expected
    assert "eps" not in config.job(["task=transformer", "norm=none"]).resolved["norm"]


@pytest.mark.parametrize(("line", "eps"), [("", 1e-5), ("eps: 0.5\n", 0.5), ("eps: ${norm_eps}\n", 1e-8)])
def test_a_norm_from_outside_may_take_the_eps_of_the_task(tmp_path: Path, line: str, eps: float) -> None:
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm/mine.yaml").write_text(f"_target_: rmsexp.norms.RMS\nname: mine\nimpl: eager\n{line}")
    assert config.job(["task=transformer", "norm=mine"], str(tmp_path)).norm.eps == eps


def test_the_eps_of_the_task_is_part_of_the_series_only() -> None:
    """``norm_eps`` changes the series and not the setting.

    A run whose config.yaml lacks it, because the run was begun before the key existed, can be continued.
    """
    job = config.job(["task=transformer", "norm_eps=1e-4"])
    assert (job.setting, job.series, job.norm.eps) == ("demo", "rms+eps=0.0001", 1e-4)
    resolved = config.job(["task=transformer"]).resolved
    stored = {key: value for key, value in resolved.items() if key != "norm_eps"}
    assert stored["norm"]["eps"] == 1e-8
    assert config.differences(resolved, stored) == {}


# --- target and quantities

TARGETS = {  # chance: what a model that has learnt nothing reaches; None: it depends on the data
    "attentive_reader": Target("valid", "error", "min", "valid"),
    "cifar10": Target("test", "error", "min", "test", chance=0.9),
    "language_model": Target("test", "bits_per_byte", "min", "valid"),
    "order_embedding": Target("test", "image_recall", "max", "valid"),
    "rnnsearch": Target("test", "bleu", "max", "valid", chance=0.0),
    "transformer": Target("test", "bleu", "max", "valid", chance=0.0),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_names_its_target_and_its_quantities_have_the_units_of_tables(task: str) -> None:
    assert tasks.task_class(task).target == TARGETS[task]
    for quantity in tasks.task_class(task).quantities:
        if quantity.metric != "loss":
            assert quantity == quantities.usual(quantity.split, quantity.metric)


@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        (["task=cifar10"], {"valid"}),
        (["task=cifar10", "data.validation=50"], set()),
        (["task=attentive_reader"], {"test"}),
    ],
)
def test_splits_that_the_data_lack_have_no_quantities(words: list[str], lacks: set[str]) -> None:
    task = tasks.make(config.job([*words, "norm=ln", "scale=demo"]), torch.device("cpu"))
    task.prepare(print)
    assert {"train", "valid", "test"} - {quantity.split for quantity in task.quantities} == lacks


@pytest.mark.usefixtures("small_synthetic_data")
@pytest.mark.parametrize(("task", "size"), [("cifar10", 5001), ("attentive_reader", 75), ("order_embedding", 46)])
def test_a_batch_larger_than_the_data_is_refused(task: str, size: int, data_root: Path) -> None:
    """A batch of order-embedding must be smaller than the data."""
    with pytest.raises(ValueError, match=f"^batch_size={size}"):
        task_and_model(f"task={task}", f"batch_size={size}", f"data.root={data_root}")


# --- batches and initial weights


@pytest.fixture
def words(data_root: Path, text_root: Path, small_synthetic_data: None) -> dict[str, list[str]]:  # noqa: ARG001
    """Return the command line of each task, with a small model."""
    return {
        "cifar10": ["task=cifar10", "model.width=0.05", "batch_size=8", f"data.root={data_root}"],
        "language_model": list(language_models.TINY),
        **{name: [*translation_tasks.tiny(name), f"data.root={text_root}"] for name in translation_tasks.TASKS},
        **{name: reading_and_retrieval.tiny(name) for name in reading_and_retrieval.TASKS},
    }


@pytest.mark.slow
@pytest.mark.parametrize("line", [*TASKS, "transformer batching=toolkit"])
def test_batches_follow_from_seed_and_step(line: str, words: dict[str, list[str]]) -> None:
    task, *more = line.split()
    parts = (lambda batch: [batch]) if task == "language_model" else iter
    assert_batches_follow_from_seed_and_step(partial(task_and_model, *words[task], *more), parts)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_all_norms_start_from_the_same_weights_which_the_seed_decides(task: str, words: dict[str, list[str]]) -> None:
    """Norms that CIFAR-10 initialises in another way are bn, wn and mean_only_bn, see its config."""

    def weights(norm: str, seed: int) -> dict[str, Tensor]:
        _, model = task_and_model(*words[task], f"norm={norm}", f"seed={seed}")
        parameters = {key: value for key, value in model.named_parameters() if not key.endswith((".gain", ".bias"))}
        return {key: value for key, value in parameters.items() if ".norm." not in key and ".cell." not in key}

    first, reseeded = weights("rms", 0), weights("rms", 1)
    drawn = {key: value for key, value in first.items() if not (value == value.flatten()[0]).all()}
    assert len(drawn) > 5
    assert all(not torch.equal(reseeded[key], value) for key, value in drawn.items())
    for norm in ("none", "ln", "prms") if task == "cifar10" else ("none", "ln", "bn", "wn", "dyt"):
        others = weights(norm, 0)
        assert all(torch.equal(others[key], value) for key, value in drawn.items())
