"""The controls of the HTML page, in a real browser."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers.campaigns import three
from helpers.records import write_run
from matplotlib import colors
from PIL import Image

from rmsexp.campaign import results as campaign_results
from rmsexp.compare import load
from rmsexp.records.frames import timing_records
from rmsexp.report import campaign_report
from rmsexp.report.page import colours, html
from rmsexp.report.plots import style

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page
from helpers.comparisons import mean_of, named, report

SLOW = 20_000  # timeout in milliseconds, for a busy machine


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
    """Yield the opened page and the list of its errors: console messages, exceptions, requests to other addresses."""
    context = browser.new_context(offline=True, color_scheme="light", viewport={"width": 1280, "height": 900})
    context.set_default_timeout(SLOW)
    page, errors = context.new_page(), []
    page.on("console", lambda message: errors.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: errors.append(request.url) if request.url != address else None)
    page.goto(address, timeout=SLOW)
    yield page, errors
    context.close()


@pytest.fixture
def show(window: tuple[Page, list[str]]) -> Iterator[Callable[[str], Page]]:
    """Yield a function that sets the hash of the page's address and returns the page. The test fails on page errors."""
    page, errors = window

    def view(fragment: str = "") -> Page:
        page.evaluate("fragment => { location.hash = fragment || 'x=step'; }", fragment)
        page.evaluate("() => new Promise((done) => setTimeout(done))")  # the event hashchange is not fired at once
        visible(page).locator(".plot .xtitle").first.wait_for()
        return page

    yield view
    assert errors == []


def visible(page: Page) -> Locator:
    return page.locator("section.setting:not([hidden])")


def axis_titles(page: Page) -> list[tuple[str, str]]:
    plots = visible(page).locator("figure:not([hidden]) .plot")
    across, upward = plots.locator(".xtitle").all_text_contents(), plots.locator(".ytitle").all_text_contents()
    return list(zip(across, upward, strict=True))


def lines(page: Page) -> int:
    """Return the number of curves in the first chart of the shown setting."""
    return visible(page).locator(".plot").first.locator("path.js-line").count()


def pixels(page: Page, colour: str) -> int:
    """Return the number of pixels with nearly this colour in the first chart of the shown setting."""
    screenshot = visible(page).locator(".plot").first.screenshot()
    image = np.asarray(Image.open(BytesIO(screenshot)).convert("RGB"), float)
    return int((np.abs(image - 255 * np.array(colors.to_rgb(colour))).max(axis=-1) < 30).sum())


def rgb(colour: str) -> str:
    """Return a colour as browsers write it, such as "rgb(0, 114, 178)"."""
    return "rgb({}, {}, {})".format(*(round(255 * part) for part in colors.to_rgb(colour)))


def test_the_page_opens_with_all_quantities_against_steps(show: Callable[[str], Page]) -> None:
    page = show()
    expected = ["train loss (nats)", "test loss (nats)", "test error (%)"]
    assert axis_titles(page) == [("step", title) for title in expected]
    assert lines(page) == 6 + 4  # seeds and means
    assert visible(page).count() == 1
    assert visible(page).locator("h2").text_content() == "cifar10, demo"
    assert min(pixels(page, style.colour(norm)) for norm in ("ln", "rms", "wn")) > 50


def test_selecting_a_task_shows_its_settings_and_the_papers_curves(show: Callable[[str], Page]) -> None:
    page = show("show=seeds")
    page.get_by_label("Task").select_option("rnnsearch")
    assert page.get_by_label("Scale and setting").locator("option").all_text_contents() == ["tiny"]
    assert visible(page).locator("h2").text_content() == "rnnsearch, tiny"
    assert axis_titles(page)[3:] == [("step", "train loss (nats)"), ("step", "valid BLEU")]
    assert "Figure 4 of the paper, at its own setting." in (
        visible(page).locator("figcaption").nth(4).text_content() or ""
    )
    assert visible(page).locator(".plot").nth(4).locator("path.js-line").count() == 2
    page.get_by_label("time", exact=True).check()
    assert axis_titles(page)[3:] == [("time in training (minutes)", "train loss (nats)")]


def test_a_norm_is_toggled_in_every_chart(show: Callable[[str], Page]) -> None:
    page = show("show=mean")
    assert lines(page) == 4
    box = visible(page).get_by_label("LayerNorm")
    box.uncheck()
    assert lines(page) == 3
    assert visible(page).locator("path.js-line").count() == 9
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
        "() => [...document.querySelectorAll('section:not([hidden]) .plot')].map((plot) => plot._fullLayout.yaxis.type)"
    )
    assert page.evaluate(kinds) == ["linear"] * 3
    page.get_by_label("logarithmic").check()
    assert page.evaluate(kinds) == ["log", "log", "linear"]  # an error has no logarithmic axis
    assert "Not drawn on a logarithmic axis" in (visible(page).locator("figcaption").nth(2).text_content() or "")
    assert "x=time" in page.url
    assert "y=log" in page.url


def test_seeds_and_means_are_shown_together_or_alone(show: Callable[[str], Page]) -> None:
    page = show("show=seeds")
    assert lines(page) == 6
    assert visible(page).locator(".plot").first.locator("path.js-fill").count() == 0
    page.get_by_label("mean", exact=True).check()
    assert lines(page) == 4
    assert visible(page).locator(".plot").first.locator("path.js-fill").count() == 1  # three seeds of LayerNorm
    assert "band: 95 %" in (visible(page).locator(".reading").text_content() or "")


def test_a_diverged_run_ends_in_a_cross(show: Callable[[str], Page]) -> None:
    page = show("show=seeds")
    kinds = page.evaluate("() => document.querySelector('.plot').data.map((trace) => trace.meta.kind)")
    assert kinds.count("diverged") == 1
    assert "x: diverged" in (visible(page).locator(".reading").text_content() or "")


def test_smoothing_is_an_exponential_moving_average_along_the_axis(show: Callable[[str], Page]) -> None:
    page = show("show=mean&smooth=4.5")
    slider = page.get_by_role("slider", name="Smoothing: 4.5 % of the axis")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#smoothing").text_content() == "Smoothing: 5 % of the axis"
    assert axis_titles(page)[0] == ("step", "train loss (nats), smoothed")
    assert "smooth=5" in page.url
    curve = mean_of(page.evaluate("() => contents.get(sections[0]).charts[0].panels.step"), "rms")
    line = page.evaluate("() => document.querySelector('.plot').data.find((trace) => trace.meta.series === 'rms')")
    drawn = [value for at, value in zip(line["x"], line["y"], strict=True) if at in curve["x"]]
    expected = curve["y"][:1]
    for before, at, value in zip(curve["x"], curve["x"][1:], curve["y"][1:], strict=False):
        weight = math.exp(-(at - before) / (0.05 * 400))
        expected.append(weight * expected[-1] + (1 - weight) * value)
    assert drawn == pytest.approx(expected)
    assert drawn != pytest.approx(curve["y"], rel=1e-3)


def test_the_value_under_the_pointer_is_shown(show: Callable[[str], Page]) -> None:
    page = show()
    visible(page).locator(".plot .nsewdrag").first.hover()
    label = visible(page).locator(".plot").first.locator(".hoverlayer")
    label.get_by_text("RMSNorm").first.wait_for()
    assert re.search(r"LayerNorm : \d\.\d+", " ".join(label.locator("text").all_text_contents()))


def test_lines_have_markers_and_labels(show: Callable[[str], Page]) -> None:
    page = show("show=mean")
    symbols = page.evaluate(
        "() => document.querySelector('.plot').data.filter((t) => t.marker?.symbol).map((t) => t.marker.symbol)"
    )
    assert set(symbols) >= {style.look(norm).symbol for norm in ("ln", "rms", "wn")}
    labels = " ".join(visible(page).locator(".plot").first.locator(".annotation").all_text_contents())
    assert all(label in labels for label in ("LayerNorm", "RMSNorm", "WeightNorm"))


def test_tables_are_sorted_by_their_headers(show: Callable[[str], Page]) -> None:
    table = visible(show()).locator("table").first
    norms = table.locator("tbody th")
    assert norms.all_text_contents() == ["LayerNorm", "RMSNorm", "WeightNorm"]
    header, button = table.locator("thead th").nth(1), table.get_by_role("button", name="test error")
    button.click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert norms.all_text_contents() == ["LayerNorm", "RMSNorm", "WeightNorm"]  # as numbers: 9.5 before 10.1
    button.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    assert norms.all_text_contents() == ["RMSNorm", "LayerNorm", "WeightNorm"]  # a missing value is last again
    table.get_by_role("button", name="norm").press("Space")
    assert table.locator("[aria-sort]").count() == 1
    assert norms.all_text_contents() == ["LayerNorm", "RMSNorm", "WeightNorm"]


def test_the_page_works_with_the_keyboard_alone(show: Callable[[str], Page]) -> None:
    page = show()
    page.locator("select[name=task]").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    assert visible(page).locator("h2").text_content() == "cifar10, small"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert axis_titles(page)[0][0] == "time in training (seconds)"
    names = []
    for _ in range(7):
        page.keyboard.press("Tab")
        names.append(page.evaluate("() => document.activeElement.name || document.activeElement.value"))
    assert names == ["y", "show", "smooth", "theme", "none", "bn", None]
    outline = "() => getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"  # the focus is visible
    page.keyboard.press("Shift+Tab")
    before = lines(page)
    page.keyboard.press("Space")
    assert lines(page) == before - 2  # the curves of the norm's one seed and of its mean


def test_a_view_is_restored_from_its_address_and_invalid_values_are_ignored(show: Callable[[str], Page]) -> None:
    page = show("task=cifar10&setting=small&x=time&y=log&show=mean&hide=bn")
    assert visible(page).locator("h2").text_content() == "cifar10, small"
    assert lines(page) == 1
    assert page.get_by_label("logarithmic").is_checked()
    page = show("task=nothing&setting=%3Cb%3E&x=1&y=&show=all&smooth=abc&theme=pink")
    assert visible(page).locator("h2").text_content() == "cifar10, demo"
    assert axis_titles(page)[0] == ("step", "train loss (nats)")
    assert lines(page) == 10


def test_colours_follow_the_system_and_the_readers_choice(show: Callable[[str], Page]) -> None:
    page = show()
    ground = "() => getComputedStyle(document.body).backgroundColor"
    line = "() => document.querySelector('.plot').data.find((trace) => trace.meta.series === 'wn').line.color"
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


def test_the_page_fits_a_phone(show: Callable[[str], Page]) -> None:
    page = show()
    try:
        page.set_viewport_size({"width": 360, "height": 740})
        visible(page).locator("details").first.click()
        page.wait_for_function("() => document.querySelector('.plot .main-svg').clientWidth <= 360")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
        wide = "(elements) => elements.filter((element) => element.getBoundingClientRect().right > 360).length"
        assert page.locator("input:visible, select:visible, .plot:visible, .scroll:visible").evaluate_all(wide) == 0
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


def test_tables_are_readable_without_javascript(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address, timeout=SLOW)
    assert page.get_by_text("Curves and controls need JavaScript").is_visible()
    assert page.locator("section.setting:visible").count() == 3
    assert page.locator("form").is_hidden()
    context.close()


def test_labels_from_records_are_escaped_in_charts(browser: Browser, tmp_path: Path) -> None:
    label = '<a href="x">link</a>'  # plotly renders some HTML tags in labels
    named(write_run(tmp_path, "evil"), f"evil+{label}")
    path = tmp_path / "report.html"
    path.write_text(html.page([report(tmp_path)]))
    page = browser.new_page()
    page.goto(path.as_uri(), timeout=SLOW)
    page.locator(".plot .nsewdrag").first.hover(timeout=SLOW)
    page.locator(".hoverlayer").get_by_text(label).first.wait_for(timeout=SLOW)
    assert page.locator(".plot a").count() == 0
    page.close()


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a page with three campaigns and no setting."""
    root = tmp_path_factory.mktemp("campaigns")
    for campaign in three():
        campaign.write(root)
    states = campaign_results.load_all(root, [])
    contents = campaign_report.write(states, load(root), timing_records.load(root), 0, root / "report")
    (path := root / "report.html").write_text(html.page([], contents))
    return path.as_uri()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_figures_of_campaigns_fit_the_window(browser: Browser, verdicts: str, width: int, theme: Any) -> None:
    context = browser.new_context(offline=True, color_scheme=theme, viewport={"width": width, "height": 900})
    page, errors = context.new_page(), []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(verdicts, timeout=SLOW)
    page.locator(".panel .xtitle").nth(4).wait_for(timeout=SLOW)
    assert page.locator(".panel .xtitle").count() == 2 + 3  # differences of two decided campaigns, rates of three
    assert page.evaluate("document.documentElement.scrollWidth") == width
    rights = page.locator(".panel .main-svg").evaluate_all("all => all.map((svg) => svg.getBoundingClientRect().right)")
    assert max(rights) <= width
    if width > 390:  # narrow pages show tables as lists, without a head
        table = page.locator(".campaigns table:not(.matrix)").first
        table.get_by_role("button").first.click()
        assert table.locator("thead th").first.get_attribute("aria-sort") == "ascending"
    mark = page.locator(".campaigns .figure").first.locator(".point").first
    expected = style.colour("rms") if theme == "light" else colours.on_dark(style.colour("rms"))
    assert rgb(expected) in mark.evaluate("point => getComputedStyle(point).fill")
    context.close()
    assert errors == []
