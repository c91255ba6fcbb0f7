"""The controls of the HTML page, in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers.campaigns import three
from helpers.comparisons import named, report
from helpers.records import write_run
from matplotlib import colors

from rmsexp.campaign import results as campaign_results
from rmsexp.compare import load
from rmsexp.records.frames import timing_records
from rmsexp.report import campaign_report
from rmsexp.report.page import html
from rmsexp.report.plots import canvas, style

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page

SLOW = 20_000  # timeout in milliseconds, for a busy machine
TITLES = ["training loss (nats)", "test loss (nats)", "test error (%)"]


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


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Yield a function that opens a page in a context with some options. The test fails on errors of the page.

    Errors are console messages, exceptions, and requests to other addresses.
    """
    contexts, errors = list["BrowserContext"](), list[str]()

    def open_page(address: str, **options: Any) -> Page:
        context = browser.new_context(offline=True, **{"viewport": {"width": 1280, "height": 900}} | options)
        contexts.append(context)
        context.set_default_timeout(SLOW)
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: errors.append(request.url) if request.url != address else None)
        page.goto(address, timeout=SLOW)
        if options.get("java_script_enabled", True):
            page.locator("#needs-scripts").wait_for(state="detached")  # then the charts are drawn
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture(scope="module")
def address(page: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page)
    return path.as_uri()


def visible(page: Page) -> Locator:
    return page.locator("section.setting:not([hidden])")


def axis_titles(page: Page) -> list[tuple[str, str]]:
    plots = visible(page).locator(".plot")
    across, upward = plots.locator(".xtitle").all_text_contents(), plots.locator(".ytitle").all_text_contents()
    return list(zip(across, upward, strict=True))


def lines(page: Page) -> int:
    """Return the number of curves in the first chart of the shown setting."""
    return visible(page).locator(".plot").first.locator("path.js-line").count()


def rgb(colour: str) -> str:
    """Return a colour as browsers write it, such as "rgb(0, 114, 178)"."""
    return "rgb({}, {}, {})".format(*(round(255 * part) for part in colors.to_rgb(colour)))


def test_controls_choose_setting_axis_curves_and_norms(opened: Callable[..., Page], address: str) -> None:
    page = opened(address)
    assert axis_titles(page) == [("step", title) for title in TITLES]
    assert visible(page).locator("h2").text_content() == "cifar10, demo"
    assert lines(page) == 4
    assert visible(page).locator(".plot").first.locator("path.js-fill").count() == 1  # three seeds of LayerNorm
    box = visible(page).get_by_label("LayerNorm")
    box.uncheck()
    assert lines(page) == 3
    box.check()
    page.get_by_label("time", exact=True).check()
    assert {across for across, _ in axis_titles(page)} == {"time in training (seconds)"}
    page.get_by_label("Scale and setting").select_option("small")
    assert visible(page).locator("h2").text_content() == "cifar10, small"
    page.get_by_label("Task").select_option("rnnsearch")
    assert page.get_by_label("Scale and setting").locator("option").all_text_contents() == ["tiny"]
    assert visible(page).locator("h2").text_content() == "rnnsearch, tiny"


def test_the_point_under_the_pointer_is_named_and_names_are_escaped(
    opened: Callable[..., Page], tmp_path: Path
) -> None:
    label = '<a href="x">link'  # plotly renders some HTML tags in labels
    named(write_run(tmp_path, "evil"), f"evil+{label}")
    (path := tmp_path / "report.html").write_text(html.page([report(tmp_path)]))
    page = opened(path.as_uri())
    page.locator(".plot .point").nth(8).hover(force=True)  # the first with a marker
    page.locator(".hoverlayer").get_by_text(label).first.wait_for()
    assert page.locator(".plot a").count() == 0


def test_colours_follow_the_system(opened: Callable[..., Page], address: str) -> None:
    page = opened(address, color_scheme="light")
    line = "() => document.querySelector('.plot').data.find((trace) => trace.name === 'WeightNorm').line.color"
    assert page.evaluate(line) == style.LOOKS["wn"].colour
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == rgb(style.DARK)
    page.wait_for_function(f"color => ({line})() === color", arg=style.LOOKS["wn"].on_dark)  # it is drawn again
    assert page.evaluate("() => document.querySelector('.plot .xtitle').style.fill") != "rgb(28, 30, 33)"


@pytest.fixture(scope="module")
def page_of_campaigns(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a page with three campaigns."""
    root = tmp_path_factory.mktemp("campaigns")
    for campaign in three():
        campaign.write(root)
    states = campaign_results.load_all(root, problems=[])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canvas, "write", lambda *_: None)
        contents = campaign_report.write(states, load(root), timing_records.load(root), 0, root / "report")
    (path := root / "report.html").write_text(html.page([], contents))
    return path.as_uri()


@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (1280, "light")])
def test_figures_of_campaigns_fit_the_window(
    opened: Callable[..., Page], page_of_campaigns: str, width: int, theme: str
) -> None:
    page = opened(page_of_campaigns, color_scheme=theme, viewport={"width": width, "height": 900})
    page.locator(".plot .xtitle").nth(4).wait_for()
    assert page.locator(".plot .xtitle").count() == 2 + 3  # differences of two decided campaigns, rates of three
    assert page.evaluate("document.documentElement.scrollWidth") == width
    rights = page.locator(".plot .main-svg").evaluate_all("all => all.map((svg) => svg.getBoundingClientRect().right)")
    assert max(rights) <= width
    mark = page.locator(".figure").first.locator(".point").first
    rms = style.LOOKS["rms"]
    expected = rms.colour if theme == "light" else rms.on_dark
    assert rgb(expected) in mark.evaluate("point => getComputedStyle(point).fill")


def test_the_page_works_with_the_keyboard_alone(opened: Callable[..., Page], address: str) -> None:
    page = opened(address)
    page.locator("select[name=task]").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    assert visible(page).locator("h2").text_content() == "cifar10, small"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert axis_titles(page)[0][0] == "time in training (seconds)"
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.value") == "none"
    assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") == "solid"
    before = lines(page)
    page.keyboard.press("Space")
    assert lines(page) == before - 1


def test_tables_are_readable_without_javascript(opened: Callable[..., Page], address: str) -> None:
    page = opened(address, java_script_enabled=False)
    assert page.get_by_text("Curves and controls need JavaScript").is_visible()
    assert page.locator("section.setting:visible").count() == 3
    assert page.locator("form").is_hidden()
