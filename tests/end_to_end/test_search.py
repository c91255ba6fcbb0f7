"""A search of values with Optuna's sweeper."""

import math

import pytest
import yaml
from helpers.command_bench import Bench, not_finite_at

from rmsexp import config
from rmsexp.commands import outcomes, run
from rmsexp.records import record
from rmsexp.work.runner import Outcome


def test_a_search_finds_the_best_value_of_the_target(bench: Bench) -> None:
    words = ["-m", "hydra/sweeper=optuna", "optim.lr=choice(1e-4,1e-3)", "hydra.sweeper.n_trials=3"]
    done = bench(*words)
    assert done.status == 0
    result = bench.results / run.SEARCH_RESULT
    assert done.out.endswith(f"result  {result}\n")
    found = yaml.safe_load(result.read_text())
    values = {}
    for folder in record.find_runs(bench.results):
        rows = [row for row in record.RunFolder(folder).read_metrics()[0] if row["split"] == "test"]
        values[str(yaml.safe_load((folder / record.CONFIG).read_text())["optim"]["lr"])] = rows[-1]["error"]
    assert found["best_value"] == min(values.values())
    assert values[str(found["best_params"]["optim.lr"])] == found["best_value"]


@pytest.mark.parametrize(("task", "direction"), [("cifar10", "minimize"), ("transformer", "maximize")])
def test_the_direction_is_the_task_s_and_the_seed_the_run_s(task: str, direction: str) -> None:
    job = config.job([f"task={task}", "seed=3"])
    assert run._of_search(job, []) == [f"hydra.sweeper.direction={direction}", "hydra.sweeper.sampler.seed=3"]
    assert run._of_search(job, ["hydra.sweeper.direction=maximize"]) == ["hydra.sweeper.sampler.seed=3"]
    assert run._of_search(job, ["hydra/sweeper/sampler=grid"]) == [f"hydra.sweeper.direction={direction}"]


def test_a_run_that_diverged_has_the_worst_value(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    not_finite_at(monkeypatch, 3)
    bench()
    job = config.job(bench.words)
    assert outcomes.value(job, Outcome("diverged", 3)) == math.inf
    bench.edit(record.RUN, lambda content: content["target"].update(mode="max"))
    assert outcomes.value(job, Outcome("diverged", 3)) == -math.inf
    rows = [{"step": 3, "split": "test", "error": None}]  # not finite
    monkeypatch.setattr(record.RunFolder, "read_metrics", lambda _: (rows, None))
    assert outcomes.value(job, Outcome("finished", 3)) == -math.inf
