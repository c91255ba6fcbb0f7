"""The report as one page: what it holds, and what a reader can switch in it, in a real browser."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from helpers.records import write_run
from matplotlib import colors
from PIL import Image

from rmsexp.compare import load, paper
from rmsexp.compare.page import colours, html
from rmsexp.compare.page.contents import SettingReport
from rmsexp.compare.plots import style
from rmsexp.compare.tables.formats import NO_VALUE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

HOSTILE = "</script><img src=x onerror=alert(1)>&amp;"
VOID = {"meta", "input", "img", "br", "link", "line"}
SLOW = 20_000  # milliseconds; the machine may be busy


def report(root: Path, task: str = "cifar10", setting: str = "demo", **more: Any) -> SettingReport:
    return SettingReport(task, setting, str(root), load(root).select(task, setting), **more)


def named(folder: Path, series: str) -> None:
    """Lets a run call its series, and the reason of its end, what a folder could not be called."""
    for file, key in (("run.json", "series"), ("status.json", "error")):
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: series}))


class Elements(HTMLParser):
    """Every element as (tag, attributes, text directly inside it), in the order in which they begin."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[int] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))
        if tag not in VOID:
            self._open.append(len(self.found) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        assert self.found[self._open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.found[self._open[-1]][2].append(data)

    def texts(self, tag: str, **attributes: str) -> list[str]:
        return [
            "".join(text).strip()
            for name, found, text in self.found
            if name == tag and attributes.items() <= found.items()
        ]


def embedded(page: str) -> list[dict[str, Any]]:
    """The data of each setting."""
    return [json.loads(text) for text in Elements(page).texts("script", type="application/json")]


def mean_of(panel: dict[str, Any], series: str) -> dict[str, Any]:
    return next(one for one in panel["curves"] if one["series"] == series and "seed" not in one)


# ---- what it holds


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two settings of a task, four series with all that must be warned of and two plain ones, and another task."""
    folder = tmp_path_factory.mktemp("results")
    for seed in range(3):
        write_run(folder, "ln", seed)
    write_run(folder, "rms", 0, contention="contended")
    write_run(folder, "rms+impl=fused", 0)
    write_run(folder, "wn", 0, status="diverged", steps=120)
    for series in ("none", "bn"):
        write_run(folder, series, 0, setting="small", dataset={"name": "CIFAR-10", "digest": "0", "builtin": False})
    write_run(folder, "rms", 0, setting="tiny", task="rnnsearch")
    return folder


TABLE = pd.DataFrame(
    [
        ["LayerNorm", "9.5 ± 0.2 %", "reference"],
        ["RMSNorm", "10.1 %", "7.0 %"],
        ["WeightNorm", NO_VALUE, f"{NO_VALUE} (diverged)"],
    ],
    columns=["norm", "test error", "saving"],
)


@pytest.fixture(scope="module")
def reports(root: Path) -> list[SettingReport]:
    said: dict[str, Any] = {"sentences": ["LayerNorm is ahead."], "notes": ["built-in data (shapes twin)"]}
    return [
        report(root, tables={"Quality & time": TABLE}, **said),
        report(root, setting="small", tables={"Summary": TABLE.iloc[:2]}),
        report(root, "rnnsearch", "tiny"),
    ]


@pytest.fixture(scope="module")
def page(reports: list[SettingReport]) -> str:
    return html.page(reports)


def test_the_page_is_whole_and_refers_to_nothing_outside(page: str) -> None:
    elements = Elements(page)
    assert not [attributes for _, attributes, _ in elements.found if {"src", "href", "srcset"} & attributes.keys()]
    assert not elements.texts("link")
    assert "@import" not in elements.texts("style")[0]
    assert "url(" not in elements.texts("style")[0]
    policy = next(found["content"] for tag, found, _ in elements.found if tag == "meta" and "http-equiv" in found)
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"https?:|\*", policy)


def test_each_setting_has_its_words_warnings_and_tables(page: str) -> None:
    elements = Elements(page)
    assert elements.texts("h2") == ["cifar10, demo", "cifar10, small", "rnnsearch, tiny"]
    assert "LayerNorm is ahead." in elements.texts("p")
    assert {"built-in data (shapes twin)", "built-in data", "1 of 6 runs diverged"} <= set(elements.texts("li"))
    assert "time of 1 of 6 runs does not count: contended" in elements.texts("li")
    assert "impl mixed" in elements.texts("li")
    assert elements.texts("caption") == ["Quality & time", "Runs", "Summary", "Runs", "Runs"]
    assert {"LayerNorm", "RMSNorm", "WeightNorm"} <= set(elements.texts("th", scope="row"))
    assert {"9.5 ± 0.2 %", "the loss is not finite", "AMD EPYC"} <= set(elements.texts("td"))


def test_runs_shorter_than_the_recipe_and_damaged_records_are_warned_of(tmp_path: Path) -> None:
    short = write_run(tmp_path, "rms", steps=200, status="interrupted")
    (write_run(tmp_path, "ln") / "metrics.jsonl").write_text('{"step": 4\n')
    elements = Elements(html.page([report(tmp_path)]))
    assert {"1 of 2 runs interrupted", "damaged records: 1"} <= set(elements.texts("li"))
    assert any(text.endswith("runs shorter than the recipe") for text in elements.texts("li"))
    assert any("metrics.jsonl:1" in text for text in elements.texts("li"))
    assert str(short) in elements.texts("td")


def test_a_plain_setting_has_no_warnings(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", dataset={"name": "CIFAR-10", "digest": "0", "builtin": False})
    assert not [found for tag, found, _ in Elements(html.page([report(tmp_path)])).found if tag == "li"]


def test_means_are_those_of_the_seeds(page: str, root: Path) -> None:
    """Seeds of one pace in steps: the mean at each step is that of the recorded values."""
    chart = embedded(page)[0]["charts"][2]
    assert chart["title"] == "test error (%)"
    mean = mean_of(chart["panels"]["step"], "ln")
    metrics = load(root).select("cifar10", "demo").metrics
    rows = metrics[(metrics["series"] == "ln") & (metrics["split"] == "test")]
    expected = rows.groupby("step")["error"].agg(["mean", "std"]) * 100
    half = 4.302653 * expected["std"] / math.sqrt(3)  # the 97.5 % quantile of t with 2 degrees of freedom
    assert mean["x"] == expected.index.tolist()
    assert mean["y"] == pytest.approx(expected["mean"].tolist(), rel=1e-5)
    assert mean["low"] == pytest.approx((expected["mean"] - half).tolist(), rel=1e-5)
    assert mean["high"] == pytest.approx((expected["mean"] + half).tolist(), rel=1e-5)


def test_time_that_does_not_count_is_marked_on_the_time_axis_alone(page: str) -> None:
    chart = embedded(page)[0]["charts"][0]
    assert chart["panels"]["time"]["title"] == "time in training (seconds)"
    marked = {
        axis: {one["series"] for one in chart["panels"][axis]["curves"] if one["uncounted"]}
        for axis in ("step", "time")
    }
    assert marked == {"step": set(), "time": {"rms"}}
    assert mean_of(chart["panels"]["time"], "ln")["x"][-1] == pytest.approx(40)  # 400 steps of 0.1 s


def test_variants_of_a_norm_share_its_colour_and_differ_in_dashes(page: str) -> None:
    series = {one["series"]: one for one in embedded(page)[0]["series"]}
    assert list(series) == ["ln", "rms", "rms+impl=fused", "wn"]
    assert series["rms"]["colour"] == series["rms+impl=fused"]["colour"] == style.colour("rms")
    assert series["rms"]["dash"] == "solid"
    assert re.fullmatch(r"[\d.]+px(,[\d.]+px)+", series["rms+impl=fused"]["dash"])
    assert [one["seeds"] for one in series.values()] == [3, 1, 1, 1]


def test_a_loss_over_many_decades_is_shown_on_a_logarithmic_axis(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "rms")
    loss, error = (embedded(html.page([report(tmp_path)]))[0]["charts"][i]["log"] for i in (0, 2))
    assert (loss, error) == (False, False)
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    row = json.loads(rows[-2])
    assert row["split"] == "train"
    (folder / "metrics.jsonl").write_text("\n".join([*rows, json.dumps(row | {"step": 404, "loss": 1e4})]) + "\n")
    assert embedded(html.page([report(tmp_path)]))[0]["charts"][0]["log"]


def test_two_roots_with_one_setting_are_told_apart(tmp_path: Path) -> None:
    for machine in ("one", "two"):
        write_run(tmp_path / machine, "rms")
    elements = Elements(html.page([report(tmp_path / "one"), report(tmp_path / "two")]))
    assert elements.texts("h2") == [f"cifar10, demo ({tmp_path / machine})" for machine in ("one", "two")]


def test_what_records_say_cannot_become_part_of_the_page(tmp_path: Path) -> None:
    write_run(tmp_path, "rms", dataset={"name": HOSTILE, "digest": "0", "builtin": True})
    named(write_run(tmp_path, "evil", status="failed"), f"evil+{HOSTILE}")
    text = html.page(
        [report(tmp_path, tables={HOSTILE: pd.DataFrame({HOSTILE: [HOSTILE]})}, sentences=[HOSTILE], notes=[HOSTILE])]
    )
    elements = Elements(text)
    assert [tag for tag, _, _ in elements.found].count("script") == 3  # the data, plotly and our own
    assert not elements.texts("img")
    for tag in ("p", "li", "td", "button", "caption"):
        assert HOSTILE in elements.texts(tag)
    assert embedded(text)[0]["series"][1]["series"] == f"evil+{HOSTILE}"


def test_a_setting_without_any_readable_run_has_no_charts(tmp_path: Path) -> None:
    (write_run(tmp_path, "rms") / "run.json").write_text("{")
    text = html.page([report(tmp_path)])
    assert embedded(text)[0]["charts"] == []
    assert any("run.json" in one for one in Elements(text).texts("li"))


def test_a_page_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no setting"):
        html.page([])


def test_the_papers_curves_stand_beside_runs_of_their_task(page: str) -> None:
    data = embedded(page)[2]
    assert not any(one["source"] for one in embedded(page)[0]["charts"])
    charts = {one["source"]: one for one in data["charts"] if one["source"]}
    assert list(charts) == ["Figure 1 of the paper, at its own setting.", "Figure 4 of the paper, at its own setting."]
    first, fourth = (one["panels"] for one in charts.values())
    assert {one["series"] for one in first["time"]["curves"]} == {"none", "ln"}
    assert "time" not in fourth
    curves = paper.curves()
    bleu = curves[(curves["figure"] == "Figure 4") & (curves["norm"] == "rms")]
    assert mean_of(fourth["step"], "rms")["y"] == pytest.approx(bleu["y"].tolist())
    assert {one["series"]: one["seeds"] for one in data["series"]} == {"none": 0, "ln": 0, "rms": 1}


# ---- thinning and colours


def test_long_runs_are_thinned_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "POINTS", 120)
    for seed in range(2):
        write_run(tmp_path, "rms", seed)
    text = html.page([report(tmp_path)])
    sizes = [len(one["x"]) for one in embedded(text)[0]["charts"][0]["panels"]["step"]["curves"]]
    assert sizes[0] <= 60 < sizes[2] <= 100  # 100 training rows a run; two seeds share 120 points, one mean has them
    assert any("thinned to at most 120 points per mean and 60 per seed" in one for one in Elements(text).texts("p"))


def test_every_colour_stands_out_on_a_dark_ground() -> None:
    every = [*style.COLOURS.values(), *style.OTHER_COLOURS]
    assert min(colours.contrast(colours.on_dark(one), colours.DARK) for one in every) >= colours.CONTRAST
    assert colours.on_dark(style.colour("prms")).lower() == style.colour("prms").lower()
    assert colours.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert colours.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # a known pair


# ---- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the Python package playwright")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs Chromium: no chromium, chromium-browser or google-chrome on the path")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=flags, timeout=SLOW)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(page: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page)
    return path.as_uri()


@pytest.fixture(scope="module")
def window(browser: Browser, address: str) -> Iterator[tuple[Page, list[str]]]:
    """The page, opened once, and all that went wrong in it: messages, exceptions and requests for other addresses."""
    context = browser.new_context(offline=True, color_scheme="light", viewport={"width": 1280, "height": 900})
    context.set_default_timeout(SLOW)
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if request.url != address else None)
    page.goto(address, timeout=SLOW)
    yield page, wrong
    context.close()


@pytest.fixture
def show(window: tuple[Page, list[str]]) -> Iterator[Callable[[str], Page]]:
    """Shows a view of the page by the hash of its address; nothing may go wrong until the test's end."""
    page, wrong = window

    def view(fragment: str = "") -> Page:
        page.evaluate("fragment => { location.hash = fragment || 'x=step'; }", fragment)
        page.wait_for_function(
            "() => new URLSearchParams(location.hash.slice(1)).has('task')" if False else "() => true"
        )
        page.evaluate("() => new Promise((done) => setTimeout(done))")  # hashchange comes later
        shown(page).locator(".plot .xtitle").first.wait_for()
        return page

    yield view
    assert wrong == []


def shown(page: Page) -> Locator:
    return page.locator("section.setting:not([hidden])")


def axis_titles(page: Page) -> list[tuple[str, str]]:
    plots = shown(page).locator("figure:not([hidden]) .plot")
    across, upward = plots.locator(".xtitle").all_text_contents(), plots.locator(".ytitle").all_text_contents()
    return list(zip(across, upward, strict=True))


def lines(page: Page) -> int:
    """The curves that are drawn in the first chart."""
    return shown(page).locator(".plot").first.locator("path.js-line").count()


def pixels(page: Page, colour: str) -> int:
    """How many pixels of the first chart have nearly this colour."""
    seen = np.asarray(Image.open(BytesIO(shown(page).locator(".plot").first.screenshot())).convert("RGB"), float)
    return int((np.abs(seen - 255 * np.array(colors.to_rgb(colour))).max(axis=-1) < 30).sum())


def rgb(colour: str) -> str:
    """As a browser writes it."""
    return "rgb({}, {}, {})".format(*(round(255 * part) for part in colors.to_rgb(colour)))


def test_it_opens_with_all_quantities_against_steps(show: Callable[[str], Page]) -> None:
    page = show()
    expected = ["train loss (nats)", "test loss (nats)", "test error (%)"]
    assert axis_titles(page) == [("step", title) for title in expected]
    assert lines(page) == 6 + 4  # seeds and means
    assert shown(page).count() == 1
    assert shown(page).locator("h2").text_content() == "cifar10, demo"
    assert min(pixels(page, style.colour(norm)) for norm in ("ln", "rms", "wn")) > 50


def test_another_task_brings_its_settings_and_the_papers_curves(show: Callable[[str], Page]) -> None:
    page = show("show=seeds")
    page.get_by_label("Task").select_option("rnnsearch")
    assert page.get_by_label("Scale and setting").locator("option").all_text_contents() == ["tiny"]
    assert shown(page).locator("h2").text_content() == "rnnsearch, tiny"
    assert axis_titles(page)[3:] == [("step", "train loss (nats)"), ("step", "BLEU")]
    assert "Figure 4 of the paper, at its own setting." in (
        shown(page).locator("figcaption").nth(4).text_content() or ""
    )
    assert shown(page).locator(".plot").nth(4).locator("path.js-line").count() == 2
    page.get_by_label("time", exact=True).check()
    assert axis_titles(page)[3:] == [("time in training (minutes)", "train loss (nats)")]


def test_a_norm_is_toggled_in_every_chart(show: Callable[[str], Page]) -> None:
    page = show("show=mean")
    assert lines(page) == 4
    box = shown(page).get_by_label("LayerNorm")
    box.uncheck()
    assert lines(page) == 3
    assert shown(page).locator("path.js-line").count() == 9
    assert pixels(page, style.colour("ln")) == 0
    assert "hide=ln" in page.url
    box.check()
    assert lines(page) == 4
    assert "hide" not in page.url
    assert pixels(page, style.colour("ln")) > 50


def test_axes_are_switched(show: Callable[[str], Page]) -> None:
    page = show()
    page.get_by_label("time", exact=True).check()
    assert {across for across, _ in axis_titles(page)} == {"time in training (seconds)"}
    kinds = (
        "() => [...document.querySelectorAll('section:not([hidden]) .plot')].map((one) => one._fullLayout.yaxis.type)"
    )
    assert page.evaluate(kinds) == ["linear"] * 3
    page.get_by_label("logarithmic").check()
    assert page.evaluate(kinds) == ["log"] * 3
    assert "x=time" in page.url
    assert "y=log" in page.url


def test_seeds_and_means_are_shown_together_or_alone(show: Callable[[str], Page]) -> None:
    page = show("show=seeds")
    assert lines(page) == 6
    assert shown(page).locator(".plot").first.locator("path.js-fill").count() == 0
    page.get_by_label("mean", exact=True).check()
    assert lines(page) == 4
    assert shown(page).locator(".plot").first.locator("path.js-fill").count() == 1  # three seeds of LayerNorm
    assert "band: 95 %" in (shown(page).locator(".reading").text_content() or "")


def test_a_diverged_run_ends_in_a_cross(show: Callable[[str], Page]) -> None:
    page = show("show=seeds")
    assert shown(page).locator(".plot").first.locator(".points path").count() == 1
    assert "x: diverged" in (shown(page).locator(".reading").text_content() or "")


def test_smoothing_is_an_exponential_moving_average_along_the_axis(show: Callable[[str], Page]) -> None:
    page = show("show=mean&smooth=4.5")
    slider = page.get_by_role("slider", name="Smoothing: 4.5 % of the axis")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#smoothing").text_content() == "Smoothing: 5 % of the axis"
    assert axis_titles(page)[0] == ("step", "train loss (nats), smoothed")
    assert "smooth=5" in page.url
    curve = mean_of(page.evaluate("() => contents.get(sections[0]).charts[0].panels.step"), "rms")
    drawn = page.evaluate("() => document.querySelector('.plot').data.find((one) => one.meta.series === 'rms').y")
    expected = curve["y"][:1]
    for before, at, value in zip(curve["x"], curve["x"][1:], curve["y"][1:], strict=False):
        kept = math.exp(-(at - before) / (0.05 * 400))
        expected.append(kept * expected[-1] + (1 - kept) * value)
    assert drawn == pytest.approx(expected)
    assert drawn != pytest.approx(curve["y"], rel=1e-3)


def test_the_value_under_the_pointer_is_shown(show: Callable[[str], Page]) -> None:
    page = show()
    shown(page).locator(".plot .nsewdrag").first.hover()
    label = shown(page).locator(".plot").first.locator(".hoverlayer")
    label.get_by_text("RMSNorm").first.wait_for()
    assert re.search(r"LayerNorm : \d\.\d+", " ".join(label.locator("text").all_text_contents()))


def test_tables_are_sorted_by_their_headers(show: Callable[[str], Page]) -> None:
    table = shown(show()).locator("table").first
    norms = table.locator("tbody th")
    assert norms.all_text_contents() == ["LayerNorm", "RMSNorm", "WeightNorm"]
    header, button = table.locator("thead th").nth(1), table.get_by_role("button", name="test error")
    button.click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert norms.all_text_contents() == ["LayerNorm", "RMSNorm", "WeightNorm"]  # 9.5 before 10.1: as numbers
    button.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    assert norms.all_text_contents() == ["RMSNorm", "LayerNorm", "WeightNorm"]  # no value comes last either way
    table.get_by_role("button", name="norm").press("Space")
    assert table.locator("[aria-sort]").count() == 1
    assert norms.all_text_contents() == ["LayerNorm", "RMSNorm", "WeightNorm"]


def test_a_keyboard_is_enough(show: Callable[[str], Page]) -> None:
    page = show()
    page.locator("select[name=task]").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    assert shown(page).locator("h2").text_content() == "cifar10, small"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert axis_titles(page)[0][0] == "time in training (seconds)"
    names = []
    for _ in range(7):
        page.keyboard.press("Tab")
        names.append(page.evaluate("() => document.activeElement.name || document.activeElement.value"))
    assert names == ["y", "show", "smooth", "theme", "none", "bn", None]
    outline = "() => getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"  # where the focus is can be seen
    page.keyboard.press("Shift+Tab")
    before = lines(page)
    page.keyboard.press("Space")
    assert lines(page) == before - 2  # its seed and its mean


def test_a_view_is_restored_from_its_address_and_nonsense_is_ignored(show: Callable[[str], Page]) -> None:
    page = show("task=cifar10&setting=small&x=time&y=log&show=mean&hide=bn")
    assert shown(page).locator("h2").text_content() == "cifar10, small"
    assert lines(page) == 1
    assert page.get_by_label("logarithmic").is_checked()
    page = show("task=nothing&setting=%3Cb%3E&x=1&y=&show=all&smooth=abc&theme=pink")
    assert shown(page).locator("h2").text_content() == "cifar10, demo"
    assert axis_titles(page)[0] == ("step", "train loss (nats)")
    assert lines(page) == 10


def test_colours_follow_the_system_and_the_readers_choice(show: Callable[[str], Page]) -> None:
    page = show()
    ground = "() => getComputedStyle(document.body).backgroundColor"
    line = "() => document.querySelector('.plot').data.find((one) => one.meta.series === 'wn').line.color"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert page.evaluate(line) == rgb(style.colour("wn"))
    try:
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(ground) == rgb(colours.DARK)
        assert page.evaluate(line) == rgb(colours.on_dark(style.colour("wn")))
        page.get_by_label("Colours").select_option("light")
        assert page.evaluate(ground) == "rgb(255, 255, 255)"
    finally:
        page.emulate_media(color_scheme="light")
    page.get_by_label("Colours").select_option("dark")
    assert page.evaluate(ground) == rgb(colours.DARK)
    assert page.evaluate("() => document.querySelector('.plot .xtitle').style.fill") != "rgb(28, 30, 33)"


def test_nothing_is_wider_than_a_phone(show: Callable[[str], Page]) -> None:
    page = show()
    try:
        page.set_viewport_size({"width": 360, "height": 740})
        shown(page).locator("details").first.click()
        page.wait_for_function("() => document.querySelector('.plot .main-svg').clientWidth <= 360")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
        wide = "(all) => all.filter((one) => one.getBoundingClientRect().right > 360).length"
        assert page.locator("input:visible, select:visible, .plot:visible, .scroll:visible").evaluate_all(wide) == 0
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


def test_without_scripts_all_tables_can_be_read(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address, timeout=SLOW)
    assert page.get_by_text("Curves and controls need JavaScript").is_visible()
    assert page.locator("section.setting:visible").count() == 3
    assert page.locator("form").is_hidden()
    context.close()


def test_labels_from_records_stay_text_in_the_charts(browser: Browser, tmp_path: Path) -> None:
    """Plotly reads some HTML in what it writes."""
    label = '<a href="x">link</a>'
    named(write_run(tmp_path, "evil"), f"evil+{label}")
    path = tmp_path / "report.html"
    path.write_text(html.page([report(tmp_path)]))
    page = browser.new_page()
    page.goto(path.as_uri(), timeout=SLOW)
    page.locator(".plot .nsewdrag").first.hover(timeout=SLOW)
    page.locator(".hoverlayer").get_by_text(label).first.wait_for(timeout=SLOW)
    assert page.locator(".plot a").count() == 0
    page.close()
