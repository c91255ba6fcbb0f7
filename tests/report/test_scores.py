"""Settings whose runs get a score: its place in the statistics, tables and curves, apart from interim evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.campaigns import Campaign

from rmsexp.compare import load
from rmsexp.records import record
from rmsexp.records.frames import quantities, statistics
from rmsexp.records.frames.caveats import caveats
from rmsexp.records.frames.load import Records
from rmsexp.report.plots import setting_curves
from rmsexp.report.tables import learning_rates, summary, time_to_target

SCORED = "small+evaluation=scored+optim.lr=0.004"
TUNING = "small+evaluation=validation+optim.lr=0.004"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results")
    Campaign().write(root)
    return root


@pytest.fixture(scope="module")
def scored(results: Path) -> Records:
    return load(results).select("cifar10", SCORED)


def of(folder: str, split: str) -> list[float]:
    rows, _ = record.RunFolder(Path(folder)).read_metrics()
    return [row["error"] for row in rows if row["split"] == split]


def test_the_result_is_the_mean_of_the_last_three_evaluations(scored: Records) -> None:
    values = statistics.headline_metric(scored, statistics.common_step(scored))
    assert len(values) == 16
    for folder, value in values.items():
        assert value == pytest.approx(sum(of(str(folder), "test")) / 3)
    assert statistics.best_metric(scored, 1000).empty


def test_a_run_without_one_of_the_evaluations_has_no_score(tmp_path: Path) -> None:
    Campaign().write(tmp_path)
    folder = tmp_path / "cifar10" / SCORED / "ln/seed3"
    path = folder / record.METRICS
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if (row["split"], row["step"]) != ("test", 900)))
    records = load(tmp_path).select("cifar10", SCORED)
    assert str(folder) not in statistics.headline_metric(records, 1000).index


def test_an_evaluation_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    Campaign().write(tmp_path)
    path = tmp_path / "cifar10" / SCORED / "ln/seed3" / record.METRICS
    before = statistics.headline_metric(load(tmp_path).select("cifar10", SCORED), 1000)
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
    records = load(tmp_path).select("cifar10", SCORED)
    assert statistics.headline_metric(records, 1000).to_dict() == before.to_dict()


def test_tuning_runs_are_reported_on_validation(results: Path) -> None:
    records = load(results).select("cifar10", TUNING)
    assert statistics.target(records).split == "valid"
    values = statistics.headline_metric(records, statistics.common_step(records))
    folder = str(results / "cifar10" / TUNING / "ln/seed1000")
    assert values[folder] == pytest.approx(sum(of(folder, "valid")) / 3)
    by_rate = learning_rates.table({results / "cifar10" / TUNING: records}).set_index("series")
    assert by_rate.loc["ln", "chosen_by"] == pytest.approx(by_rate.loc["ln", "value"])


def test_scores_are_named_so(scored: Records) -> None:
    table = summary.readable(summary.table(scored, "cifar10", SCORED))
    assert list(table.columns)[3:] == [
        "test error, mean of the last 3 evaluations",
        "seconds per 1k steps, median (quartiles)",
    ]
    assert "16.08 ± 0.38" in table.iloc[0, 3]
    assert summary.for_terminal(summary.table(scored, "cifar10", SCORED)).row_count == 2
    assert "the mean of a run's last 3 evaluations on all of test" in caveats(scored)[-1]


def test_curves_are_of_the_interim_evaluations(scored: Records) -> None:
    found = quantities.recorded(scored)
    assert [one.name for one in found] == ["train_loss", "interim_loss", "interim_error"]
    assert quantities.title(found[-1]) == "valid, 256 examples: error (%)"
    panel, _ = setting_curves.chart(scored, found[-1:]).panels
    assert {len(mark.x) for mark in panel.marks} == {20}


def test_the_time_to_a_level_is_taken_from_interim_evaluations(scored: Records) -> None:
    goal = time_to_target.level(scored)
    assert goal is not None
    assert goal.split == "interim"
    assert time_to_target.title(goal).startswith("Steps until valid, 256 examples: error is ")


def test_an_unknown_plan_of_evaluations_is_damage(tmp_path: Path) -> None:
    Campaign(grid=(0.004,), best={"ln": 0.004}, level={"ln": 16.0}, seeds=1, claims=()).write(tmp_path)
    path = tmp_path / "cifar10" / SCORED / "ln/seed0" / record.RUN
    path.write_text(json.dumps(json.loads(path.read_text()) | {"evaluation": ["scored"]}))
    assert "evaluation is ['scored']" in load(tmp_path).problems[0]
