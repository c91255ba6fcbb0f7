"""Settings whose runs get a score: its place in the statistics, tables and curves, apart from interim evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.campaigns import Campaign

from rmsexp.compare import load
from rmsexp.records import record
from rmsexp.records.frames import statistics
from rmsexp.records.frames.load import Records
from rmsexp.report.tables import learning_rates

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


def test_tuning_runs_are_reported_on_validation(results: Path) -> None:
    records = load(results).select("cifar10", TUNING)
    assert statistics.target(records).split == "valid"
    values = statistics.headline_metric(records, statistics.common_step(records))
    folder = str(results / "cifar10" / TUNING / "ln/seed1000")
    assert values[folder] == pytest.approx(sum(of(folder, "valid")) / 3)
    by_rate = learning_rates.table({results / "cifar10" / TUNING: records}).set_index("series")
    assert by_rate.loc["ln", "chosen_by"] == pytest.approx(by_rate.loc["ln", "value"])


def test_an_unknown_plan_of_evaluations_is_damage(tmp_path: Path) -> None:
    Campaign(grid=(0.004,), best={"ln": 0.004}, level={"ln": 16.0}, seeds=1, claims=()).write(tmp_path)
    path = tmp_path / "cifar10" / SCORED / "ln/seed0" / record.RUN
    path.write_text(json.dumps(json.loads(path.read_text()) | {"evaluation": ["scored"]}))
    assert "evaluation is ['scored']" in load(tmp_path).problems[0]
