"""The content of the HTML page."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.comparisons import mean_of, named, report
from helpers.records import write_run

from rmsexp.compare import load
from rmsexp.report import paper
from rmsexp.report.page import html
from rmsexp.report.plots import style

HOSTILE = "</script><img src=x onerror=alert(1)>&amp;"
VOID = {"meta", "input", "img", "br", "link", "line"}


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


def embedded(page: str) -> list[dict[str, Any]]:
    """Return the JSON data, series and charts, that a page holds for each setting."""
    return [json.loads(text) for text in Elements(page).texts("script", type="application/json")]


def test_the_page_is_self_contained(page: str) -> None:
    elements = Elements(page)
    assert not [attributes for _, attributes, _ in elements.elements if {"src", "href", "srcset"} & attributes.keys()]
    assert not elements.texts("link")
    assert "@import" not in elements.texts("style")[0]
    assert "url(" not in elements.texts("style")[0]
    policy = next(
        attributes["content"]
        for tag, attributes, _ in elements.elements
        if tag == "meta" and "http-equiv" in attributes
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"https?:|\*", policy)


def test_each_setting_has_its_sentences_warnings_and_tables(page: str) -> None:
    elements = Elements(page)
    assert elements.texts("h2") == ["cifar10, demo", "cifar10, small", "rnnsearch, tiny"]
    assert "LayerNorm is ahead." in elements.texts("p")
    assert {"built-in data (shapes)", "built-in data", "1 of 6 runs diverged"} <= set(elements.texts("li"))
    assert "time of 1 of 6 runs excluded: contended" in elements.texts("li")
    assert "impl mixed" in elements.texts("li")
    assert elements.texts("caption") == ["Quality & time", "Runs", "Summary", "Runs", "Runs"]
    assert {"LayerNorm", "RMSNorm", "WeightNorm"} <= set(elements.texts("th", scope="row"))
    assert {"9.5 ± 0.2 %", "the loss is not finite", "AMD EPYC"} <= set(elements.texts("td"))


def test_means_are_those_of_the_seeds(page: str, root: Path) -> None:
    chart = embedded(page)[0]["charts"][2]
    assert chart["title"] == "test error (%)"
    # all seeds have rows at the same steps, so nothing is interpolated
    mean = mean_of(chart["panels"]["step"], "ln")
    metrics = load(root).select("cifar10", "demo").metrics
    rows = metrics[(metrics["series"] == "ln") & (metrics["split"] == "test")]
    expected = rows.groupby("step")["error"].agg(["mean", "std"]) * 100
    half = 4.302653 * expected["std"] / math.sqrt(3)  # the 97.5 % quantile of t with 2 degrees of freedom
    assert mean["x"] == expected.index.tolist()
    assert mean["y"] == pytest.approx(expected["mean"].tolist(), rel=1e-5)
    assert mean["low"] == pytest.approx((expected["mean"] - half).tolist(), rel=1e-5)
    assert mean["high"] == pytest.approx((expected["mean"] + half).tolist(), rel=1e-5)


def test_a_band_ends_where_fewer_than_three_seeds_are_in_the_mean(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, "rms", seed, steps=40, seconds_per_step=1.0 + seed)
    chart = embedded(html.page([report(tmp_path)]))[0]["charts"][-1]
    mean = mean_of(chart["panels"]["time"], "rms")
    assert mean["x"] == [0, 40, 80]  # seconds; the seeds end after 40, 80 and 120
    for bound in ("low", "high"):
        assert [value is None for value in mean[bound]] == [False, False, True]


def test_excluded_time_is_marked_only_on_the_time_axis(page: str) -> None:
    chart = embedded(page)[0]["charts"][0]
    assert chart["panels"]["time"]["title"] == "time in training (seconds)"
    marked = {
        axis: {curve["series"] for curve in chart["panels"][axis]["curves"] if curve["time_excluded"]}
        for axis in ("step", "time")
    }
    assert marked == {"step": set(), "time": {"rms"}}
    assert mean_of(chart["panels"]["time"], "ln")["x"][-1] == pytest.approx(40)  # 400 steps of 0.1 s


def test_variants_of_a_norm_share_its_colour_and_differ_in_dashes(page: str) -> None:
    series = {look["series"]: look for look in embedded(page)[0]["series"]}
    assert list(series) == ["ln", "rms", "rms+impl=fused", "wn"]
    assert series["rms"]["colour"] == series["rms+impl=fused"]["colour"] == style.colour("rms")
    assert series["rms"]["dash"] == "solid"
    assert re.fullmatch(r"[\d.]+px(,[\d.]+px)+", series["rms+impl=fused"]["dash"])
    assert [look["seeds"] for look in series.values()] == [3, 1, 1, 1]


def test_a_loss_over_many_decades_is_shown_on_a_logarithmic_axis(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "rms")
    loss, error = (embedded(html.page([report(tmp_path)]))[0]["charts"][i]["log"] for i in (0, 2))
    assert (loss, error) == (False, False)
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    row = json.loads(rows[-2])
    assert row["split"] == "train"
    (folder / "metrics.jsonl").write_text("\n".join([*rows, json.dumps(row | {"step": 404, "loss": 1e4})]) + "\n")
    assert embedded(html.page([report(tmp_path)]))[0]["charts"][0]["log"]


def test_text_from_records_is_escaped(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", dataset={"name": HOSTILE, "digest": "0", "builtin": True})
    named(write_run(tmp_path, "evil", status="failed"), f"evil+{HOSTILE}")
    text = html.page(
        [report(tmp_path, tables={HOSTILE: pd.DataFrame({HOSTILE: [HOSTILE]})}, sentences=[HOSTILE], notes=[HOSTILE])]
    )
    elements = Elements(text)
    assert [tag for tag, _, _ in elements.elements].count("script") == 3  # the data, plotly and page.js
    assert not elements.texts("img")
    for tag in ("p", "li", "td", "button", "caption"):
        assert HOSTILE in elements.texts(tag)
    assert embedded(text)[0]["series"][1]["series"] == f"evil+{HOSTILE}"


def test_a_page_without_settings_is_an_error() -> None:
    with pytest.raises(ValueError, match="no setting"):
        html.page([])


def test_the_papers_curves_are_shown_with_runs_of_their_task(page: str) -> None:
    data = embedded(page)[2]
    assert not any(chart["source"] for chart in embedded(page)[0]["charts"])
    charts = {chart["source"]: chart for chart in data["charts"] if chart["source"]}
    assert list(charts) == ["Figure 1 of the paper, at its own setting.", "Figure 4 of the paper, at its own setting."]
    first, fourth = (chart["panels"] for chart in charts.values())
    assert {curve["series"] for curve in first["time"]["curves"]} == {"none", "ln"}
    assert "time" not in fourth
    curves = paper.curves()
    bleu = curves[(curves["figure"] == "Figure 4") & (curves["norm"] == "rms")]
    assert mean_of(fourth["step"], "rms")["y"] == pytest.approx(bleu["y"].tolist())
    assert {look["series"]: look["seeds"] for look in data["series"]} == {"none": 0, "ln": 0, "rms": 1}


def test_long_runs_are_thinned_as_described_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "POINTS", 120)
    for seed in range(2):
        write_run(tmp_path, "rms", seed)
    text = html.page([report(tmp_path)])
    sizes = [len(curve["x"]) for curve in embedded(text)[0]["charts"][0]["panels"]["step"]["curves"]]
    # each run has 100 training rows; two seeds share the 120 points, and the only mean may have all of them
    assert sizes[0] <= 60 < sizes[2] <= 100
    assert any("thinned to at most 120 points per mean and 60 per seed" in text for text in Elements(text).texts("p"))


def test_curves_of_very_many_runs_keep_a_few_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, "ln")
    monkeypatch.setattr(html, "POINTS", 1)
    _, end = html.page([report(tmp_path)]).split('"curves":', 1)
    curves, _ = json.JSONDecoder().raw_decode(end)
    assert [2 <= len(curve["x"]) <= 4 for curve in curves] == [True, True]
