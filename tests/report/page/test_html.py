"""The content of the HTML page, and its first view."""

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.comparisons import marks_of, named, report
from helpers.records import load_timings, write_run, write_timing

from rmsexp.report.page import answer, html
from rmsexp.report.plots import savings as savings_plot
from rmsexp.report.setting_report import SettingReport
from rmsexp.report.tables import formats, seed_tests, verdicts
from rmsexp.report.tables.markup import Table

HOSTILE = "</script><img src=x onerror=alert(1)>&amp;"
EACH_SEED = r"[+-][\d.]+ \(95 %: [+-][\d.]+ to [+-][\d.]+\) points, 3 seeds"
UNDECIDED = verdicts.table([])
NO_TIMES = pd.DataFrame(columns=["series", "task", "setting", "ratio", "too_wide"]).astype({"too_wide": bool})
NONE = dict.fromkeys(answer.TIMES, NO_TIMES)  # no savings
REAL = {"name": "CIFAR-10", "digest": "0", "builtin": False}


def texts(page: str, tag: str) -> list[str]:
    """Return the texts of the elements with a tag, before Plotly's script."""
    found = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", page.partition("<script>")[0], re.DOTALL)
    return [unescape(re.sub("<[^>]+>", "", text)).strip() for text in found]


def embedded(page: str) -> list[list[dict[str, Any]]]:
    """Return the panels that a page holds for each setting."""
    return [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]


def test_the_page_is_self_contained(page: str) -> None:
    own = page.partition("<script>")[0]
    assert not re.search(r"<link|<[^>]+ (src|href|srcset)=|@import|url\(", own)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', own)
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"https?:|\*", policy)


def test_each_setting_has_its_sentences_warnings_and_tables(page: str) -> None:
    assert texts(page, "h2") == ["cifar10, demo", "cifar10, small", "rnnsearch, tiny"]
    assert "LayerNorm is ahead." in texts(page, "p")
    assert {"built-in data (shapes)", "built-in data", "1 of 6 runs diverged"} <= set(texts(page, "li"))
    assert texts(page, "caption") == ["Quality & time", "Summary"]
    assert {"LayerNorm", "RMSNorm", "WeightNorm"} <= set(texts(page, "th"))
    assert "9.5 ± 0.2 %" in texts(page, "td")
    assert "LayerNorm (3 seeds)" in texts(page, "span")


def test_the_page_has_the_marks_of_the_figures(page: str, reports: list[SettingReport]) -> None:
    for found, panels in zip(reports, embedded(page), strict=True):
        assert found.curves is not None
        for panel, stored in zip(found.curves.panels, panels, strict=True):
            titles = (stored["x"]["title"], stored["y"]["title"], stored["note"])
            assert titles == (panel.x.title, panel.y.title, panel.note)
            for mark, entry in zip(panel.marks, stored["marks"], strict=True):
                found_here = (entry["kind"], entry["series"], entry["look"]["colour"])
                assert found_here == (mark.kind, mark.series, mark.look.colour)
                assert entry["y"] == pytest.approx(list(mark.y), rel=1e-5)
    curves = reports[0].curves
    assert curves is not None
    (variant,) = marks_of(curves.panels[0], "rms+impl=fused", "line")
    entry = embedded(page)[0][0]["marks"][curves.panels[0].marks.index(variant)]
    assert entry["low"] == []  # a single seed has no band


def test_text_from_records_is_escaped(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", dataset={"name": HOSTILE, "digest": "0", "builtin": True})
    series = f"evil+{HOSTILE.replace('/', '')}"  # the name of a folder
    named(write_run(tmp_path, "evil", status="failed"), series)
    hostile = pd.DataFrame({HOSTILE: [HOSTILE]})
    text = html.page(
        [report(tmp_path, tables=[Table("hostile", HOSTILE, hostile, hostile)], sentences=[HOSTILE], notes=[HOSTILE])]
    )
    assert "<img" not in text.partition("<script>")[0]
    for tag in ("p", "li", "th", "caption"):
        assert HOSTILE in texts(text, tag)
    assert series in {mark["series"] for mark in embedded(text)[0][0]["marks"]}


def with_tests(found: SettingReport, numbers: pd.DataFrame | None = None) -> SettingReport:
    """Return the report of a setting with its table of differences from LayerNorm, or with these numbers."""
    numbers = seed_tests.table(found.records) if numbers is None else numbers
    return replace(found, tables=[Table("paired", "", numbers, numbers)])


@pytest.fixture
def first(tmp_path: Path) -> answer.Answer:
    """Return the first view of two settings, of which the second is on real data."""
    for seed in range(3):
        for series in ("ln", "rms"):
            write_run(tmp_path, series, seed)
            write_run(tmp_path, series, seed, setting="small", dataset=REAL)
    write_timing(tmp_path, {"ln": 1.0, "rms": [0.8, 0.82]})
    reports = [with_tests(report(tmp_path, setting=setting)) for setting in ("small", "demo")]
    savings = NONE | {"eager": savings_plot.rows(load_timings(tmp_path), "eager")}
    return answer.answer(reports, UNDECIDED, savings)


def test_differences_have_intervals(first: answer.Answer) -> None:
    assert first.table["runs"].tolist() == ["small, real data", "demo, built-in data"]
    assert first.table[answer.QUALITY].str.fullmatch(EACH_SEED).all()
    assert first.table[answer.TIMES["eager"]].tolist() == ["19.0 % (1 timing)"] * 2
    assert answer.references(first.table) == ["LayerNorm"]


def test_each_implementation_of_a_setting_has_a_row_and_own_norms_come_first(tmp_path: Path) -> None:
    for series in ("ln", "rms", "mine", "ln+impl=fused", "rms+impl=fused"):
        write_run(tmp_path, series)
    found = with_tests(report(tmp_path))
    table = answer.answer([found], UNDECIDED, NONE).table
    assert table[["norm", "runs"]].to_numpy().tolist() == [
        ["mine", "demo, built-in data"],
        ["RMSNorm", "demo, built-in data"],
        ["RMSNorm", "demo, built-in data, impl=fused"],
    ]
    tuning = replace(found, records=replace(found.records, runs=found.records.runs.assign(evaluation="validation")))
    nothing = answer.answer([tuning], UNDECIDED, NONE)
    assert nothing.table.empty
    assert "norm=ln" in nothing.sentences[0]  # what to do


def test_pairs_without_a_difference_say_why(tmp_path: Path) -> None:
    for series, seeds in {"ln": (0, 1, 2), "rms": (3,), "prms": (0, 1)}.items():
        for seed in seeds:
            write_run(tmp_path, series, seed, dataset=REAL, impl="own")
    write_run(tmp_path, "prms", 2, status="diverged", dataset=REAL, impl="own")
    table = answer.answer([with_tests(report(tmp_path))], UNDECIDED, NONE).table
    reasons = ["(no seed at which both have a value)", "(2 seeds: too few for an interval; 1 with pRMSNorm diverged)"]
    assert table[answer.QUALITY].tolist() == [f"{formats.NO_VALUE} {reason}" for reason in reasons]
    assert set(table["runs"]) == {"demo, own data"}


@pytest.mark.parametrize(("second", "count"), [("supported", 1), ("inconclusive", 0), ("refuted", 0)])
def test_a_task_counts_as_equal_if_all_campaigns_on_it_say_so(second: str, count: int) -> None:
    row = {"a": "rms", "b": "ln", "test": "equivalence", "task": "cifar10", "blind": False}
    over = pd.DataFrame([row | {"outcome": outcome} for outcome in ("supported", second)])
    assert f"on {count} of 1 tasks" in answer._sentence("rms", over, dict.fromkeys(answer.TIMES, ()))


def test_a_positive_difference_is_better_and_intervals_are_those_of_the_paired_table(tmp_path: Path) -> None:
    for seed in range(3):
        for series in ("ln", "rms", "none"):
            write_run(tmp_path, series, seed)
    found = report(tmp_path)
    tests = seed_tests.table(found.records)
    row = tests["series"] == "rms"
    tests.loc[row, ["difference", "interval"]] = [-0.02, 0.03]
    shown = answer.answer([with_tests(found, tests)], UNDECIDED, NONE).table.to_dict("records")[0]
    assert shown[answer.QUALITY] == "+2.00 (95 %, Bonferroni: -1.00 to +5.00) points, 3 seeds"
