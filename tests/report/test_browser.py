"""The page in a real browser: opened from the disk, sorted, turned dark, made narrow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="The page is tried with the Python package selenium.")
from browsing import ROWS, Browser
from folders import make_document
from selenium.webdriver.common.keys import Keys

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
    name = "rows[number].cells[0].dataset.value = name"
    page.execute_script(
        f"const rows = {ROWS}; ['client 10', 'client 9', ''].forEach((name, number) => {{ {name}; }})"
    )
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
