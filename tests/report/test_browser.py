"""The page in a real browser: opened from the disk, sorted, turned dark, made narrow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="The page is tried with the Python package selenium.")
from browsing import show
from folders import make_document
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from pacpfl.report import write_report


@pytest.fixture(scope="module")
def mixture_page(mixture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every section that there is."""
    folder = Path(shutil.copytree(mixture, tmp_path_factory.mktemp("browser_reports") / "mixture"))
    (folder / "certificates.json").write_text(json.dumps(make_document()))
    return write_report(folder)


@pytest.fixture
def page(browser: webdriver.Chrome, mixture_page: Path) -> webdriver.Chrome:
    """The page freshly opened, wide and light."""
    show(browser, width=1100, theme="light")
    browser.get(mixture_page.as_uri())
    return browser


def column(browser: webdriver.Chrome, title: str) -> tuple[Any, int]:
    """The header cell with this title, and its place."""
    headers = browser.find_elements(By.CSS_SELECTOR, "table.sortable thead th")
    titles = [header.find_element(By.TAG_NAME, "button").text for header in headers]
    return headers[titles.index(title)], titles.index(title)


def values(browser: webdriver.Chrome, place: int) -> list[str]:
    """What the rows of a column are sorted by, from top to bottom."""
    return browser.execute_script(
        "return [...document.querySelectorAll('table.sortable tbody tr')]"
        ".map(row => row.cells[arguments[0]].dataset.value)",
        place,
    )


def sorts(browser: webdriver.Chrome) -> list[str]:
    headers = browser.find_elements(By.CSS_SELECTOR, "table.sortable thead th")
    return [header.get_attribute("aria-sort") or "" for header in headers]


def test_it_opens_from_the_disk_without_an_error_or_a_request(page: webdriver.Chrome) -> None:
    assert page.title == "polynomial · pacpfl report"
    assert page.find_element(By.TAG_NAME, "h1").text == "polynomial"
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert page.get_log("browser") == []


def test_every_figure_can_be_seen(page: webdriver.Chrome) -> None:
    drawings = page.find_elements(By.CSS_SELECTOR, "figure svg")
    assert len(drawings) == 9
    for drawing in drawings:
        assert drawing.is_displayed()
        assert drawing.size["width"] > 600
        assert drawing.size["height"] > 100
        label = page.execute_script(
            "return arguments[0].querySelector('text').getBoundingClientRect().height", drawing
        )
        assert label > 8
    assert page.find_element(By.ID, "conditions").is_displayed()


def test_a_click_sorts_and_a_second_click_turns_it_round(page: webdriver.Chrome) -> None:
    header, place = column(page, "RSMSE")
    before = values(page, place)
    assert before != sorted(before, key=float)
    header.find_element(By.TAG_NAME, "button").click()
    assert values(page, place) == sorted(before, key=float)
    assert header.get_attribute("aria-sort") == "ascending"
    assert page.find_element(By.ID, "clients-status").get_property("textContent") == (
        "Sorted by RSMSE, ascending."
    )
    header.find_element(By.TAG_NAME, "button").click()
    assert values(page, place) == sorted(before, key=float, reverse=True)
    assert header.get_attribute("aria-sort") == "descending"
    assert page.get_log("browser") == []


@pytest.mark.parametrize("key", [Keys.ENTER, Keys.SPACE], ids=["enter", "space"])
def test_the_keyboard_sorts_as_well(page: webdriver.Chrome, key: str) -> None:
    first, _ = column(page, "Client")
    header, place = column(page, "NLL")
    column(page, "90% coverage")[0].find_element(By.TAG_NAME, "button").click()
    button = header.find_element(By.TAG_NAME, "button")
    previous = column(page, "CE")[0].find_element(By.TAG_NAME, "button")
    previous.send_keys(Keys.TAB)  # from the header before, as somebody without a mouse would
    assert page.switch_to.active_element == button
    button.send_keys(key)
    assert values(page, place) == sorted(values(page, place), key=float)
    assert sorts(page).count("none") == len(sorts(page)) - 1
    assert header.get_attribute("aria-sort") == "ascending"
    assert first.get_attribute("aria-sort") == "none"


def test_names_sort_as_people_count_and_unknown_stays_last(page: webdriver.Chrome) -> None:
    header, place = column(page, "Client")
    page.execute_script(
        "const rows = document.querySelectorAll('table.sortable tbody tr');"
        "['client 10', 'client 9', ''].forEach("
        "(name, number) => { rows[number].cells[0].dataset.value = name; })"
    )
    button = header.find_element(By.TAG_NAME, "button")
    button.click()
    rising = values(page, place)
    button.click()
    falling = values(page, place)
    assert rising[:2] == ["client 9", "client 10"]
    assert rising[-1] == falling[-1] == ""
    assert falling[:-1] == rising[:-1][::-1]


@pytest.mark.parametrize("width", [360, 800, 1100])
def test_nothing_sticks_out_to_the_side(page: webdriver.Chrome, width: int) -> None:
    show(page, width=width, theme="light")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    lead = page.find_element(By.ID, "summary")
    assert lead.rect["x"] >= 0 and lead.rect["x"] + lead.rect["width"] <= width


def test_the_skip_link_comes_first_and_leads_to_the_results(page: webdriver.Chrome) -> None:
    page.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    link = page.switch_to.active_element
    assert link.text == "Skip to the results"
    assert link.rect["x"] >= 0
    link.send_keys(Keys.ENTER)
    assert page.switch_to.active_element.get_attribute("id") == "main"


def test_no_other_script_can_run(page: webdriver.Chrome) -> None:
    page.execute_script(
        "const script = document.createElement('script');"
        "script.textContent = 'window.broken = true'; document.body.append(script)"
    )
    assert page.execute_script("return window.broken === undefined")
    (message,) = page.get_log("browser")
    assert "Content Security Policy" in message["message"]


def test_a_dark_page_prints_in_dark_ink(page: webdriver.Chrome) -> None:
    show(page, width=1100, theme="dark")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]
    })  # fmt: skip
    ink = page.execute_script("return getComputedStyle(document.body).color")
    assert ink == "rgb(32, 38, 46)"
