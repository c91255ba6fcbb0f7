"""The scores of the paper's items, which scripts/readme_numbers.py computes from the committed records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import campaigns
from helpers.records import make_row, write_run, write_timing
from readme_blocks import paper_items
from readme_blocks.evidence import Evidence
from readme_blocks.paper_items import AGREES, DISAGREES, IN_SIGN, REPRODUCED, UNDECIDED, Found

from rmsexp.records import record

BETTER_LN = {"claim": "LayerNorm is better than no norm", "test": "superiority", "a": "ln", "b": "none", "margin": None}


def found(root: Path, name: str, claim: str) -> Found:
    (item,) = (item for item in paper_items.ITEMS if (item.name, item.claim) == (name, claim))
    return item.find(paper_items.Sources(Evidence(root, root)), item)


def write_campaign(
    root: Path, task: str, level: dict[str, float], claims: Sequence[dict[str, Any]], **more: Any
) -> None:
    metric, mode = {"cifar10": ("error", "min")}.get(task, ("bleu", "max"))
    named = {"name": f"quality_{task}", "task": task, "metric": metric, "mode": mode}
    best = dict.fromkeys(level, 0.002)
    campaigns.Campaign(level=level, best=best, claims=claims, **named, **more).write(root / "quality")


def test_without_records_of_a_task_only_what_is_computed_is_scored(tmp_path: Path) -> None:
    level = {"ln": 16.0, "rms": 16.1}
    write_campaign(tmp_path, "language_model", level, [campaigns.EQUAL])
    write_timing(tmp_path / "m", {"ln": 1.0, "rms": 0.9}, task="language_model", setting="small")
    lines = paper_items.scores(Evidence(tmp_path, tmp_path)).splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")][2:]
    assert len(rows) == len(paper_items.ITEMS)
    assert [row[-1] for row in rows if row[0] == "Table 1"] == [REPRODUCED]
    assert {row[-1] for row in rows if row[0] != "Table 1"} == {UNDECIDED}


def test_a_difference_is_scored_by_its_sign(tmp_path: Path) -> None:
    level = {"none": 24.0, "ln": 16.0, "rms": 12.0}
    write_campaign(tmp_path, "cifar10", level, [campaigns.EQUAL, campaigns.BETTER, BETTER_LN])
    better = found(tmp_path, "Table 10", "RMSNorm is better than LayerNorm")
    assert (better.paper, better.score) == ("+1.66 points", IN_SIGN)
    assert better.here.startswith(("+3.", "+4."))
    reversed_claim = found(tmp_path, "Table 10", "no norm is better than LayerNorm")
    assert reversed_claim.score == DISAGREES
    assert reversed_claim.here.startswith(("-7.", "-8."))
    assert found(tmp_path, "Table 10", "RMSNorm is better than pRMSNorm").score == UNDECIDED  # no claim about it


@pytest.mark.parametrize(
    ("ends", "outcome", "expected"),
    [
        ([(0.1, 0.5), (0.2, 0.9)], "supported", IN_SIGN),
        ([(0.1, 0.5), (-0.9, -0.2)], "supported", UNDECIDED),
        ([(0.1, 0.5)], "inconclusive", UNDECIDED),  # neither norm trains
    ],
)
def test_figure_4_needs_campaigns_that_agree(
    ends: list[tuple[float, float]], outcome: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims about BLEU, or about weights centred on 0, do not count."""
    (item,) = (item for item in paper_items.ITEMS if item.name == "Figure 4")
    shared = {"task": "rnnsearch", "test": "superiority", "unit": "nats", "margin": math.nan, "remarks": ""}
    rows = [
        shared
        | {"a": item.a, "b": item.b, "score": "test loss", "outcome": outcome, "difference": low}
        | {"low": low, "high": high}
        for low, high in ends
    ]
    rows += [rows[0] | {"score": "test bleu", "low": -2.0, "high": -1.0}, rows[0] | {"a": "rms", "b": "ln", "high": -1}]
    monkeypatch.setattr(paper_items.Sources, "verdicts", rows)
    figure = item.find(paper_items.Sources(Evidence(Path(), Path())), item)
    assert (figure.paper, figure.score) == ("+12.6 BLEU", expected)
    assert figure.here.startswith("+0.1000 (+0.1000 to +0.5000) nats")


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ({"none": 10.0, "ln": 16.0, "rms": 16.1}, AGREES),
        ({"none": 10.0, "ln": 16.0, "rms": 12.0}, DISAGREES),
        ({"none": 16.1, "ln": 16.0, "rms": 16.1}, UNDECIDED),  # no norm would pass, too
        ({"none": 10.0, "ln": 16.0, "rms": 17.5}, UNDECIDED),
    ],
)
def test_equality_is_scored_by_the_claim_of_a_campaign(tmp_path: Path, level: dict[str, float], expected: str) -> None:
    write_campaign(tmp_path, "transformer", level, [campaigns.EQUAL])
    assert found(tmp_path, "Table 4", "RMSNorm equals LayerNorm").score == expected


def test_a_claim_that_the_campaign_does_not_make_is_marked(tmp_path: Path) -> None:
    write_campaign(tmp_path, "rnnsearch", {"ln": 16.0, "rms": 16.1, "prms": 16.05}, [campaigns.EQUAL])
    assert found(tmp_path, "Tables 2, 3", "pRMSNorm equals LayerNorm").score == f"{AGREES}, not registered"


@pytest.mark.parametrize(("none", "expected"), [(15.0, DISAGREES), (1.0, AGREES)])
def test_whether_a_model_trains_is_scored_by_its_runs(tmp_path: Path, none: float, expected: str) -> None:
    write_campaign(tmp_path, "transformer", {"none": none, "ln": 16.0, "rms": 16.1}, [campaigns.EQUAL, BETTER_LN])
    trained = found(tmp_path, "Table 4", "no norm does not train")
    assert (trained.paper, trained.score) == ("0.0 BLEU", expected)


@pytest.mark.parametrize(
    ("times", "expected"), [((0.8, 0.9), IN_SIGN), ((0.8, 1.1), UNDECIDED), ((1.2, 1.1), DISAGREES)]
)
def test_a_saving_must_hold_on_every_machine(tmp_path: Path, times: tuple[float, float], expected: str) -> None:
    for place, time in zip("ab", times, strict=True):
        session = {"machine": {"id": place, "name": place}}
        write_timing(tmp_path / place, {"ln": 1.0, "rms": [time, time + 0.001]}, setting="small", session=session)
    saved = found(tmp_path, "Table 10", "RMSNorm saves time")
    assert (saved.paper, saved.score) == ("20.5 %", expected)


@pytest.mark.parametrize(("seeds", "expected"), [((0, 1), IN_SIGN), ((0,), UNDECIDED)])
def test_one_seed_decides_nothing(tmp_path: Path, seeds: tuple[int, ...], expected: str) -> None:
    for series, level in (("bn", 0.2), ("rms", 0.5)):
        for seed in seeds:
            folder = write_run(tmp_path / "m", series, seed, setting="small", steps=100)
            row = make_row(100, 0.0, "test") | {"error": level + seed * (0.1 if series == "rms" else 0.101)}
            record.RunFolder(folder).append([row])
    assert found(tmp_path, "Table 10", "BatchNorm is better than RMSNorm").score == expected
