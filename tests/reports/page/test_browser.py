"""The page in a browser: what it shows, with scripts and without, on a wide screen, a narrow one and on paper."""

import re
import shutil
from importlib.resources import files

import pytest

from monai_sc.reports import summarise_run
from monai_sc.reports.page import RunSource, write_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium has no sandbox where root runs it, as in a container.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module", params=["2d", "3d"])
def address(make_store, history, tmp_path_factory, request):
    store = make_store(tmp_path_factory.mktemp("run"), request.param)
    source = RunSource(store, summarise_run(store, history), store.root.parent)
    return write_page(source, store.root.parent, progress=False).as_uri()


@pytest.fixture
def opened(browser, address):
    """Return a function that opens the page, and fail if the page complained of anything or asked for anything."""
    complaints, pages = [], []

    def open_page(**options):
        page = browser.new_page(**options)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or complaints.append(request.url))
        page.goto(address)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert complaints == []


def shown(page):
    return page.locator(".case:visible").count()


def test_cases_are_found_by_name_and_warning(opened):
    page = opened()
    assert shown(page) == 5
    assert page.locator("#count").inner_text() == "5 of 5 cases"
    page.get_by_label("Name holds").fill("CASE 3")
    assert (shown(page), page.locator("#count").inner_text()) == (1, "1 of 5 cases")
    page.get_by_label("Name holds").fill("")
    warned = page.locator(".case .warnings").count()
    page.get_by_label("Warning").select_option("*")
    assert shown(page) == warned
    page.get_by_label("Name holds").fill("no such case")
    assert shown(page) == 0


def test_links_to_hidden_cases_show_them(opened):
    page = opened()
    page.get_by_label("Name holds").fill("no such case")
    page.evaluate("location.hash = '#case-2'")
    page.wait_for_function("!document.getElementById('case-2').hidden")
    assert shown(page) == 5


def test_outlines_are_switched_off(opened):
    page = opened()
    paths = page.locator(".pictures path.given:visible")
    assert paths.count() >= 5
    page.get_by_label("label as given").uncheck()
    assert paths.count() == 0
    assert page.locator(".pictures path.corrected:visible").count() >= 5


@pytest.mark.parametrize("address", ["3d"], indirect=True)
def test_slider_moves_through_the_slices_by_keys(opened):
    page = opened()
    figure = page.locator(".slices").first
    slider = figure.locator("input")
    before = figure.locator(".title").text_content()
    assert re.fullmatch(r"axial, slice \d+ of 20", before)
    slider.focus()
    slider.press("Home")
    first = figure.locator(".title").text_content()
    slider.press("ArrowRight")
    second = figure.locator(".title").text_content()
    assert len({before, first, second}) == 3
    assert slider.get_attribute("aria-valuetext") == second
    assert figure.locator(".slice:visible").count() == 1


def test_all_is_there_without_scripts(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert shown(page) == 5
    assert page.get_by_label("Name holds").count() == 0 or not page.get_by_label("Name holds").is_visible()
    pictures = page.locator(".pictures svg:visible")
    assert pictures.count() >= 5
    page.get_by_label("label as given").uncheck()
    assert page.locator(".pictures path.given:visible").count() == 0
    context.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_page_fits_and_is_accessible(opened, scheme, width):
    page = opened(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # What the package's own Python does, which reads the script in the encoding of the system.
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")["violations"]
    serious = [(v["id"], v["nodes"][0]["html"][:200]) for v in found if v["impact"] in ("serious", "critical")]
    assert serious == []


def test_paper_has_every_case_and_no_controls(opened, tmp_path):
    page = opened()
    page.emulate_media(media="print")
    assert shown(page) == 5
    assert not page.locator(".controls").is_visible()
    printed = page.pdf()
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type ?/Page\b", printed)) >= 2
