"""The page in a real browser: opened from the disk, sorted, turned dark, made narrow."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("selenium", reason="The page is tried with the Python package selenium.")
from browsing import ROWS, Browser
from folders import make_document, make_run
from patience import patience
from selenium.webdriver.common.keys import Keys

from pacpfl.report import page as pages
from pacpfl.report.folder import read_run
from pacpfl.report.page import write_report


@pytest.fixture(scope="module")
def mixture_page(mixture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every section that there is."""
    folder = Path(shutil.copytree(mixture, tmp_path_factory.mktemp("browser_reports") / "mixture"))
    (folder / "certificates.json").write_text(json.dumps(make_document()))
    return write_report(folder)


@pytest.fixture
def page(browser: Browser, mixture_page: Path) -> Browser:
    """The page freshly opened, wide and light."""
    browser.show(width=1100, theme="light")
    browser.get(mixture_page.as_uri())
    return browser


def column(browser: Browser, title: str) -> tuple[Any, Any, int]:
    """The header cell with this title, its button, and its place."""
    buttons = browser.all("table.sortable thead th button")
    place = [button.text for button in buttons].index(title)
    return browser.all("table.sortable thead th")[place], buttons[place], place


def values(browser: Browser, place: int) -> list[str]:
    """What the rows of a column are sorted by, from top to bottom."""
    return browser.js(f"{ROWS}.map(row => row.cells[arguments[0]].dataset.value)", place)


def test_it_opens_from_the_disk_without_an_error_or_a_request(page: Browser) -> None:
    assert page.title == "polynomial · pacpfl report"
    assert page.one("h1").text == "polynomial"
    assert page.js("performance.getEntriesByType('resource').length") == 0
    assert page.get_log("browser") == []


def test_every_figure_can_be_seen(page: Browser) -> None:
    drawings = page.all("figure svg")
    assert len(drawings) == 10
    for drawing in drawings:
        assert drawing.is_displayed()
        assert drawing.size["width"] > 600
        assert drawing.size["height"] > 100
        label = page.js(
            "arguments[0].querySelector('text').getBoundingClientRect().height", drawing
        )
        assert label > 8
    assert page.one("#conditions").is_displayed()


def test_a_click_sorts_and_a_second_click_turns_it_round(page: Browser) -> None:
    header, button, place = column(page, "RSMSE")
    before = values(page, place)
    assert before != sorted(before, key=float)
    for order in ("ascending", "descending"):
        button.click()
        assert values(page, place) == sorted(before, key=float, reverse=order == "descending")
        assert header.get_attribute("aria-sort") == order
        status = page.one("#clients-status").get_property("textContent")
        assert status == f"Sorted by RSMSE, {order}."
    assert page.get_log("browser") == []


@pytest.mark.parametrize("key", [Keys.ENTER, Keys.SPACE], ids=["enter", "space"])
def test_the_keyboard_sorts_as_well(page: Browser, key: str) -> None:
    header, button, place = column(page, "NLL")
    column(page, "90% coverage")[1].click()
    column(page, "CE")[1].send_keys(Keys.TAB)  # as somebody without a mouse would
    assert page.focused == button
    button.send_keys(key)
    assert values(page, place) == sorted(values(page, place), key=float)
    headers = page.all("table.sortable thead th")
    assert [h for h in headers if h.get_attribute("aria-sort") != "none"] == [header]
    assert header.get_attribute("aria-sort") == "ascending"


def test_names_sort_as_people_count_and_unknown_stays_last(page: Browser) -> None:
    _, button, place = column(page, "Client")
    change = "['client 10', 'client 9', ''].forEach((name, number) => { columns[0].values[number] = name;"
    page.execute_script(f"{change} rowOf(number).cells[0].dataset.value = name; }})")
    button.click()
    rising = values(page, place)
    button.click()
    falling = values(page, place)
    assert rising[:2] == ["client 9", "client 10"]
    assert rising[-1] == falling[-1] == ""
    assert falling[:-1] == rising[:-1][::-1]


@pytest.mark.parametrize("width", [360, 800, 1100])
def test_nothing_sticks_out_to_the_side(page: Browser, width: int) -> None:
    page.show(width=width, theme="light")
    assert page.js("document.documentElement.scrollWidth") <= width
    lead = page.one("#summary")
    assert lead.rect["x"] >= 0 and lead.rect["x"] + lead.rect["width"] <= width


def test_the_skip_link_comes_first_and_leads_to_the_results(page: Browser) -> None:
    page.one("body").send_keys(Keys.TAB)
    link = page.focused
    assert link.text == "Skip to the results"
    assert link.rect["x"] >= 0
    link.send_keys(Keys.ENTER)
    assert page.focused.get_attribute("id") == "main"


def test_no_other_script_can_run(page: Browser) -> None:
    page.execute_script(
        "const script = document.createElement('script');"
        "script.textContent = 'window.broken = true'; document.body.append(script)"
    )
    assert page.js("window.broken === undefined")
    (message,) = page.get_log("browser")
    assert "Content Security Policy" in message["message"]


def test_a_dark_page_prints_in_dark_ink(page: Browser) -> None:
    page.show(width=1100, theme="dark")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]
    })  # fmt: skip
    ink = page.js("getComputedStyle(document.body).color")
    assert ink == "rgb(32, 38, 46)"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of 5,000 clients with every figure, no two of whom have the same curves."""
    folder = tmp_path_factory.mktemp("many")
    run = read_run(make_run(folder / "run", clients=10, copies=250, test=100, kept=100))
    random = np.random.default_rng(0)
    arrays = {
        key: values + random.normal(0, 0.1, values.shape) if "offsets" not in key else values
        for key, values in run.arrays.items()
        if key.startswith("panels/")
    }
    run = replace(run, arrays=run.arrays | arrays)
    written = folder / "many.html"
    written.write_text(pages.render(run, pages.draw(run)), encoding="utf-8")
    return written


def test_five_thousand_clients_open_sort_and_turn_quickly(browser: Browser, many: Path) -> None:
    assert many.stat().st_size < 4_000_000
    opening, opened = "performance.getEntriesByType('navigation')[0]", []
    for _ in range(3):  # whoever else uses the machine is not the page
        browser.load(many.as_uri())
        opened.append(browser.js(f"{opening}.loadEventEnd - {opening}.startTime"))
    assert min(opened) < patience(2) * 1000
    assert len(browser.all("table.sortable tbody tr")) == 50
    _, button, place = column(browser, "NLL")
    took = browser.execute_script(
        "const before = performance.now(); arguments[0].click(); document.body.offsetHeight;"
        "return performance.now() - before", button
    )  # fmt: skip
    assert took < patience(0.3) * 1000
    every = sorted(browser.js("columns[arguments[0]].values", place), key=float)
    shown = [float(value) for value in values(browser, place)]
    assert shown == pytest.approx([float(value) for value in every[:50]], rel=1e-6)
    browser.one("#pager-on").click()
    assert browser.one("#pager-place").text == "51 to 100 of 5000"
    shown = [float(value) for value in values(browser, place)]
    assert shown == pytest.approx([float(value) for value in every[50:100]], rel=1e-6)
    name = browser.names[7]
    browser.choose(name)
    assert len(browser.all("#panel svg")) >= 3
    browser.one("#panel-next").click()
    browser.wait(lambda: browser.opened == browser.names[8])
    browser.close_panel()
    browser.one("#filter-text").send_keys("copy 77")
    assert 0 < len(browser.names) <= 50 and all("copy 77" in found for found in browser.names)
    print(many.stat().st_size, took, opened)
    assert browser.get_log("browser") == []
