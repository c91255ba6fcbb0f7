"""The content of the HTML page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.comparisons import marks_of, named, report
from helpers.records import write_run

from rmsexp.report.page import html
from rmsexp.report.page.contents import SettingReport
from rmsexp.report.plots import style

HOSTILE = "</script><img src=x onerror=alert(1)>&amp;"
VOID = {"meta", "input", "img", "br", "link", "line", "path"}


class Elements(HTMLParser):
    """Lists a page's elements in the order of their opening tags, each as (tag, attributes, texts directly inside)."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[int] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.elements[self._open[-1]][2].append(data)

    def texts(self, tag: str, **attributes: str) -> list[str]:
        return [
            "".join(text).strip()
            for name, element_attributes, text in self.elements
            if name == tag and attributes.items() <= element_attributes.items()
        ]


def embedded(page: str) -> list[list[dict[str, Any]]]:
    """Return the panels that a page holds for each setting."""
    return [json.loads(text) for text in Elements(page).texts("script", type="application/json")]


def test_the_page_is_self_contained(page: str) -> None:
    elements = Elements(page)
    assert not [attributes for _, attributes, _ in elements.elements if {"src", "href", "srcset"} & attributes.keys()]
    assert not elements.texts("link")
    assert not re.search(r"@import|url\(", elements.texts("style")[0])
    (policy,) = [attributes["content"] for _, attributes, _ in elements.elements if "http-equiv" in attributes]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"https?:|\*", policy)


def test_each_setting_has_its_sentences_warnings_and_tables(page: str) -> None:
    elements = Elements(page)
    assert elements.texts("h2") == ["cifar10, demo", "cifar10, small", "rnnsearch, tiny"]
    assert "LayerNorm is ahead." in elements.texts("p")
    assert {"built-in data (shapes)", "built-in data", "1 of 6 runs diverged"} <= set(elements.texts("li"))
    assert elements.texts("caption") == ["Quality & time", "Summary"]
    assert {"LayerNorm", "RMSNorm", "WeightNorm"} <= set(elements.texts("th", scope="row"))
    assert "9.5 ± 0.2 %" in elements.texts("td")
    assert "LayerNorm (3 seeds)" in elements.texts("span")


def test_the_page_has_the_marks_of_the_figures(page: str, reports: list[SettingReport]) -> None:
    for found, panels in zip(reports, embedded(page), strict=True):
        assert found.curves is not None
        for panel, stored in zip(found.curves.panels, panels, strict=True):
            titles = (stored["x"]["title"], stored["y"]["title"], stored["note"])
            assert titles == (panel.x.title, panel.y.title, panel.note)
            for mark, entry in zip(panel.marks, stored["marks"], strict=True):
                assert (entry["kind"], entry["series"], entry["colour"]) == (mark.kind, mark.series, mark.look.colour)
                assert entry["y"] == pytest.approx(list(mark.y), rel=1e-5)
    curves = reports[0].curves
    assert curves is not None
    (variant,) = marks_of(curves.panels[0], "rms+impl=fused", "line")
    entry = embedded(page)[0][0]["marks"][curves.panels[0].marks.index(variant)]
    assert entry["colour"] == style.LOOKS["rms"].colour
    assert re.fullmatch(r"[\d.]+px(,[\d.]+px)+", entry["dash"])
    assert set(entry["low"]) == {None}  # a single seed has no interval


def test_text_from_records_is_escaped(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", dataset={"name": HOSTILE, "digest": "0", "builtin": True})
    named(write_run(tmp_path, "evil", status="failed"), f"evil+{HOSTILE}")
    text = html.page(
        [report(tmp_path, tables={HOSTILE: pd.DataFrame({HOSTILE: [HOSTILE]})}, sentences=[HOSTILE], notes=[HOSTILE])]
    )
    elements = Elements(text)
    assert [tag for tag, _, _ in elements.elements].count("script") == 3  # the data, plotly and page.js
    assert not elements.texts("img")
    for tag in ("p", "li", "th", "caption"):
        assert HOSTILE in elements.texts(tag)
    assert f"evil+{HOSTILE}" in {mark["series"] for mark in embedded(text)[0][0]["marks"]}


def test_a_page_without_settings_is_an_error() -> None:
    with pytest.raises(ValueError, match="no setting"):
        html.page([])
