"""The content of the HTML page."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.comparisons import marks_of, named, report
from helpers.records import write_run

from rmsexp.report.page import html
from rmsexp.report.setting_report import SettingReport
from rmsexp.report.tables.markup import Table

HOSTILE = "</script><img src=x onerror=alert(1)>&amp;"


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
        for panel, stored in zip(found.charts["curves"].panels, panels, strict=True):
            titles = (stored["x"]["title"], stored["y"]["title"], stored["note"])
            assert titles == (panel.x.title, panel.y.title, panel.note)
            for mark, entry in zip(panel.marks, stored["marks"], strict=True):
                assert (entry["kind"], entry["series"], entry["look"]["colour"]) == (
                    mark.kind,
                    mark.series,
                    mark.look.colour,
                )
                assert entry["y"] == pytest.approx(list(mark.y), rel=1e-5)
    curves = reports[0].charts["curves"]
    (variant,) = marks_of(curves.panels[0], "rms+impl=fused", "line")
    entry = embedded(page)[0][0]["marks"][curves.panels[0].marks.index(variant)]
    assert set(entry["low"]) == {None}  # a single seed has no interval


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
